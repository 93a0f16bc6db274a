//! Scheduling of imports: whose runs next, and which one gives its place back.
//!
//! Some imports run at once. Each counts for the requesters that want it, see [`ImageRequester`]. A free place goes to the
//! requester that holds fewest; of those, to the one that got none for longest; of its images, to the first in line. Whoever
//! held a place for a whole turn gives it back when a requester waits that holds fewer. So who waits gets a turn before anybody
//! gets a second one, however slow the sources of the others are and however many images they ask for.
//!
//! An import that gave its place back keeps what it has read, up to [`TurnRules::kept`] of them: of more, the slowest begins
//! anew in its next turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::slipway::Image;

/// Who wants an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageRequester {
    /// A namespace with a host that names its source.
    Namespace(String),
    /// All who made Images themselves.
    ByHand,
    /// Nobody any more: hosts named its source once.
    LeftOver,
}

/// Tells who wants an Image now; at least one requester. It must not be a thing that a user may write on the Image.
pub(super) type RequestersOf = Arc<dyn Fn(&Image) -> Vec<ImageRequester> + Send + Sync>;

/// How places are given.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnRules {
    /// Imports at once.
    pub(super) places: usize,
    /// How long a place is its holder's, whoever waits.
    pub(super) turn: Duration,
    /// Imports that keep what they have read while they wait. Each has some threads and buffers of some MiB.
    pub(super) kept: usize,
}

/// The places. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Turns {
    rules: TurnRules,
    requesters_of: RequestersOf,
    line: Arc<Mutex<ImportQueue>>,
}

#[derive(Default)]
struct ImportQueue {
    /// Places given so far.
    given: u64,
    running: Vec<ImportSeat>,
    waiting: VecDeque<WaitingImport>,
    /// By requester, twice the number of the place that it got last. One that came after a place was given stands before who
    /// got that one, and behind all who got another or came before.
    last: HashMap<ImageRequester, u64>,
}

struct ImportSeat {
    number: u64,
    image: Arc<Image>,
    since: Instant,
}

struct WaitingImport {
    image: Arc<Image>,
    kept: Option<PartialSource>,
    seat: oneshot::Sender<ImportTurn>,
}

/// What an import that waits has read already.
#[derive(Clone, Debug)]
pub(super) struct PartialSource {
    /// Bytes per second that it read while it had a place.
    pub(super) rate: u64,
    /// Told when it must let go of it, because faster ones need the room.
    pub(super) lost: CancellationToken,
}

/// A place, until it is dropped.
pub(super) struct ImportTurn {
    turns: Turns,
    number: u64,
}

impl Drop for ImportTurn {
    fn drop(&mut self) {
        self.turns.lock().running.retain(|seat| seat.number != self.number);
        self.turns.serve();
    }
}

impl Turns {
    pub(super) fn new(rules: TurnRules, requesters_of: RequestersOf) -> Self {
        let rules = TurnRules { places: rules.places.max(1), ..rules };
        Self { rules, requesters_of, line: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ImportQueue> {
        // Only counts and the line change under it, in whole steps.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place at once, when one is free and nobody waits.
    pub(super) fn try_enter(&self, image: &Arc<Image>) -> Option<ImportTurn> {
        let mut line = self.lock();
        line.leave();
        let free = line.running.len() < self.rules.places && line.waiting.is_empty();
        free.then(|| self.seat(&mut line, image.clone()))
    }

    /// Waits for a place. Who stops waiting leaves the line.
    pub(super) async fn enter(&self, image: &Arc<Image>, kept: Option<PartialSource>) -> ImportTurn {
        loop {
            if let Ok(turn) = self.stand(image, kept.clone()).await {
                return turn;
            }
        }
    }

    /// The end of the line.
    fn stand(&self, image: &Arc<Image>, kept: Option<PartialSource>) -> oneshot::Receiver<ImportTurn> {
        let (seat, turn) = oneshot::channel();
        let mut line = self.lock();
        line.waiting.push_back(WaitingImport { image: image.clone(), kept, seat });
        line.keep(self.rules.kept);
        drop(line);
        self.serve();
        turn
    }

    /// Whether somebody waits for a place.
    pub(super) fn others_wait(&self) -> bool {
        self.lock().waiting.iter().any(|waiting| !waiting.seat.is_closed())
    }

    /// Whether this place is to be given back now.
    pub(super) fn is_over(&self, turn: &ImportTurn, now: Instant) -> bool {
        let mut line = self.lock();
        line.leave();
        let of = |seat: &ImportSeat| ((self.requesters_of)(&seat.image), now.saturating_duration_since(seat.since));
        let running: Vec<_> = line.running.iter().map(of).collect();
        let waiting: Vec<_> = line.waiting.iter().map(|waiting| (self.requesters_of)(&waiting.image)).collect();
        let over = gives_back(&running, &waiting, self.rules.turn);
        over.and_then(|at| line.running.get(at)).is_some_and(|seat| seat.number == turn.number)
    }

    fn seat(&self, line: &mut ImportQueue, image: Arc<Image>) -> ImportTurn {
        line.given += 1;
        let number = line.given;
        for requester in (self.requesters_of)(&image) {
            line.last.insert(requester, 2 * number);
        }
        line.running.push(ImportSeat { number, image, since: Instant::now() });
        ImportTurn { turns: self.clone(), number }
    }

    /// Gives away what is free.
    fn serve(&self) {
        loop {
            let mut line = self.lock();
            line.leave();
            if line.running.len() >= self.rules.places || line.waiting.is_empty() {
                return;
            }
            let running: Vec<_> = line.running.iter().map(|seat| (self.requesters_of)(&seat.image)).collect();
            let waiting: Vec<_> =
                line.waiting.iter().map(|one| ((self.requesters_of)(&one.image), one.kept.is_some())).collect();
            // Whoever comes now waits behind those who came before: nobody gains by leaving and coming again.
            let (new, mut last) = ((2 * line.given).saturating_sub(1), std::mem::take(&mut line.last));
            let all = || running.iter().chain(waiting.iter().map(|(requesters, _)| requesters)).flatten();
            last.retain(|requester, _| all().any(|known| known == requester));
            all().for_each(|requester| _ = last.entry(requester.clone()).or_insert(new));
            line.last = last;
            let first = next(&running, &waiting, &line.last);
            let Some(WaitingImport { image, seat, .. }) = first.and_then(|at| line.waiting.remove(at)) else { return };
            let turn = self.seat(&mut line, image);
            drop(line);
            // Who has gone meanwhile gives it back by this, and it comes round again.
            drop(seat.send(turn));
        }
    }
}

impl ImportQueue {
    /// Forgets those who wait no more.
    fn leave(&mut self) {
        self.waiting.retain(|waiting| !waiting.seat.is_closed());
    }

    /// Lets the slowest go of what they have, until no more than `most` have something.
    fn keep(&mut self, most: usize) {
        self.leave();
        let mut kept: Vec<_> = self.waiting.iter_mut().filter(|waiting| waiting.kept.is_some()).collect();
        kept.sort_by_key(|waiting| waiting.kept.as_ref().map(|kept| std::cmp::Reverse(kept.rate)));
        for kept in kept.into_iter().skip(most).filter_map(|waiting| waiting.kept.take()) {
            kept.lost.cancel();
        }
    }
}

/// Places held by that of its requesters which holds fewest: for it the image is due soonest.
fn load(requesters: &[ImageRequester], running: &[Vec<ImageRequester>]) -> usize {
    let held = |requester: &ImageRequester| running.iter().filter(|requesters| requesters.contains(requester)).count();
    requesters.iter().map(held).min().unwrap_or_default()
}

/// Which of those that wait is next. Of one requester, those go first that have read something already.
fn next(
    running: &[Vec<ImageRequester>],
    waiting: &[(Vec<ImageRequester>, bool)],
    last: &HashMap<ImageRequester, u64>,
) -> Option<usize> {
    let turn = |requesters: &[ImageRequester]| {
        requesters.iter().map(|requester| last.get(requester).copied().unwrap_or(u64::MAX)).min()
    };
    let order = |(at, (requesters, kept)): (usize, &(Vec<ImageRequester>, bool))| {
        (load(requesters, running), turn(requesters), !kept, at)
    };
    waiting.iter().enumerate().map(order).min().map(|(.., at)| at)
}

/// Which of those that run, with how long they did, gives its place back: of those who had their turn and whose requester
/// holds more places than another that waits, the one whose requester holds most, and of these the one that had it for
/// longest.
fn gives_back(
    running: &[(Vec<ImageRequester>, Duration)],
    waiting: &[Vec<ImageRequester>],
    turn: Duration,
) -> Option<usize> {
    let all: Vec<_> = running.iter().map(|(requesters, _)| requesters.clone()).collect();
    let least = waiting.iter().map(|requesters| load(requesters, &all)).min()?;
    let over =
        |(at, (requesters, held)): (usize, &(Vec<ImageRequester>, Duration))| (load(requesters, &all), *held, at);
    running
        .iter()
        .enumerate()
        .map(over)
        .filter(|(load, held, _)| *held >= turn && *load > least)
        .max()
        .map(|(.., at)| at)
}

/// What a source must bring at least while others wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastRate {
    /// Bytes per second.
    pub(super) bytes: u64,
    /// It is looked at after each such time.
    pub(super) over: Duration,
}

/// How fast a source is.
pub(super) struct SourcePace {
    least: LeastRate,
    looked: (Instant, u64),
}

impl SourcePace {
    /// From now on, with this many bytes read.
    pub(super) fn new(least: LeastRate, now: Instant, read: u64) -> Self {
        Self { least, looked: (now, read) }
    }

    /// Whether it brought too little since the last look, which is this long ago at least.
    pub(super) fn is_slow(&mut self, now: Instant, read: u64) -> bool {
        let (since, before) = self.looked;
        let passed = now.saturating_duration_since(since);
        if passed < self.least.over {
            return false;
        }
        self.looked = (now, read);
        let expected = u128::from(self.least.bytes) * passed.as_millis() / 1000;
        u128::from(read.saturating_sub(before)) < expected
    }
}

/// How long an import may hold places in all, whoever waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Longest {
    /// Whatever its size.
    pub(super) base: Duration,
    /// Bytes of its size that give it one second more.
    pub(super) rate: u64,
}

impl Longest {
    /// For a source with this many bytes. `most` is the limit of sizes; of a source that does not say how long it is, or
    /// says that it is longer, no more is believed.
    pub(super) fn of(&self, total: Option<u64>, most: u64) -> Duration {
        let size = total.unwrap_or(most).min(most);
        self.base.saturating_add(Duration::from_secs(size / self.rate.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::api::slipway::ImageSpec;

    const TURN: Duration = Duration::from_secs(300);

    /// `a b` are two namespaces; `-` is what was made by hand, `.` what is left over.
    fn requesters(text: &str) -> Vec<ImageRequester> {
        let of = |word: &str| match word {
            "-" => ImageRequester::ByHand,
            "." => ImageRequester::LeftOver,
            name => ImageRequester::Namespace(name.to_owned()),
        };
        text.split(' ').map(of).collect()
    }

    #[test]
    fn the_next_is_of_who_holds_least_then_of_who_got_none_for_longest() {
        type Names = &'static [&'static str];
        type Last = &'static [(&'static str, u64)];
        let table: &[(Names, Names, Last, Option<usize>)] = &[
            (&[], &[], &[], None),
            (&[], &["a"], &[], Some(0)),
            // Places count first.
            (&["a"], &["a", "b"], &[("a", 1), ("b", 2)], Some(1)),
            (&["a", "a", "b"], &["a", "b"], &[("a", 1), ("b", 3)], Some(1)),
            // Then who had none for longest: a hundred images of one requester are one requester.
            (&[], &["a", "a", "b"], &[("a", 7), ("b", 3)], Some(2)),
            (&["c"], &["a", "a", "b"], &[("a", 7), ("b", 3)], Some(2)),
            (&[], &["-", "b"], &[("-", 7), ("b", 3)], Some(1)),
            (&[], &[".", "-"], &[(".", 7), ("-", 3)], Some(1)),
            // Then what has begun, then the line.
            (&[], &["a", "a+"], &[("a", 7)], Some(1)),
            (&[], &["a", "a"], &[("a", 7)], Some(0)),
            (&[], &["a", "b"], &[("a", 7), ("b", 7)], Some(0)),
            // What two want is due when it is due for one of them.
            (&["a"], &["a", "a b"], &[("a", 2), ("b", 1)], Some(1)),
            (&["a", "b"], &["a", "a c"], &[("a", 2), ("b", 1), ("c", 9)], Some(1)),
            (&["a"], &["b", "a b"], &[("a", 2), ("b", 1)], Some(0)),
            (&[], &["a b", "b"], &[("a", 2), ("b", 1)], Some(0)),
        ];
        for (running, waiting, last, expected) in table {
            let running: Vec<_> = running.iter().map(|text| requesters(text)).collect();
            let one = |text: &&str| (requesters(text.trim_end_matches('+')), text.ends_with('+'));
            let waiting: Vec<_> = waiting.iter().map(one).collect();
            let last = last
                .iter()
                .flat_map(|(requester, at)| requesters(requester).into_iter().map(move |requester| (requester, *at)));
            assert_eq!(next(&running, &waiting, &last.collect()), *expected, "{running:?} {waiting:?}");
        }
    }

    #[test]
    fn who_had_a_turn_gives_it_back_to_who_holds_fewer() {
        type Held = &'static [(&'static str, u64)];
        let table: &[(Held, &[&str], Option<usize>)] = &[
            // Nobody waits, nobody had a turn, or nobody of those who wait holds fewer.
            (&[("a", 9999), ("a", 9999)], &[], None),
            (&[("a", 299), ("a", 0)], &["b"], None),
            (&[("a", 9999), ("a", 9999)], &["a"], None),
            (&[("a", 9999), ("b", 9999)], &["a", "b"], None),
            (&[("-", 9999)], &["-"], None),
            // Who holds most, then who had it longest.
            (&[("a", 300), ("a", 0)], &["b"], Some(0)),
            (&[("a", 400), ("b", 500), ("a", 300)], &["c"], Some(0)),
            (&[("a", 299), ("b", 500), ("a", 299)], &["c"], Some(1)),
            (&[("a", 400), ("b", 500)], &["c"], Some(1)),
            (&[("a", 400), ("a", 500), ("b", 9999)], &["b"], Some(1)),
            (&[("a", 300)], &["a", "b"], Some(0)),
            (&[("-", 300)], &["b"], Some(0)),
            (&[(".", 300)], &["-"], Some(0)),
            // What another wants as well is held by the one with fewer.
            (&[("a b", 900), ("a", 300)], &["c"], Some(1)),
            (&[("a b", 900), ("a", 300)], &["b"], Some(1)),
            (&[("a", 900)], &["a b"], Some(0)),
        ];
        for (running, waiting, expected) in table {
            let held = |(text, seconds): &(&str, u64)| (requesters(text), Duration::from_secs(*seconds));
            let running: Vec<_> = running.iter().map(held).collect();
            let waiting: Vec<_> = waiting.iter().map(|text| requesters(text)).collect();
            assert_eq!(gives_back(&running, &waiting, TURN), *expected, "{running:?} {waiting:?}");
        }
    }

    /// An Image of the requester that its name begins with.
    fn image(name: &str) -> Arc<Image> {
        Arc::new(Image::new(name, ImageSpec::default()))
    }

    fn turns(places: usize) -> Turns {
        let name = |image: &Image| image.metadata.name.clone().unwrap_or_default();
        let requesters_of: RequestersOf =
            Arc::new(move |image| requesters(name(image).split('/').next().unwrap_or_default()));
        Turns::new(TurnRules { places, turn: TURN, kept: 2 }, requesters_of)
    }

    #[test]
    fn a_hundred_images_of_one_keep_nobody_else_waiting_and_who_left_is_passed_over() {
        for places in [1, 2] {
            let turns = turns(places);
            let mut held: Vec<_> = (0..places).map(|_| turns.try_enter(&image("drip")).expect("free")).collect();
            assert!(turns.try_enter(&image("drip")).is_none() && !turns.others_wait());
            let drip = image("drip");
            let mut drips: Vec<_> = (0..100).map(|_| Box::pin(turns.enter(&drip, None))).collect();
            assert!(drips.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
            let honest = image("honest");
            let mut honest = Box::pin(turns.enter(&honest, None));
            assert!(honest.as_mut().now_or_never().is_none() && turns.others_wait());
            held.pop();
            let honest = honest.as_mut().now_or_never().expect("it is the first, though it came last");
            assert!(drips[0].as_mut().now_or_never().is_none());
            // Whoever goes while it waits costs nobody a place.
            drips.drain(..99);
            drop(honest);
            let last = drips[0].as_mut().now_or_never().expect("the one that still waits");
            drop((held, last));
            assert!(!turns.others_wait() && turns.try_enter(&image("x")).is_some());
        }
    }

    #[test]
    fn a_place_that_was_given_to_somebody_who_left_comes_round() {
        let turns = turns(1);
        let turn = turns.try_enter(&image("a")).expect("free");
        let b = image("b");
        let mut gone = Box::pin(turns.enter(&b, None));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(turn);
        // It was given, and never taken.
        assert!(turns.try_enter(&image("c")).is_none());
        drop(gone);
        assert!(turns.try_enter(&image("c")).is_some());
    }

    #[test]
    fn everybody_has_a_turn_before_anybody_has_a_second_also_who_leaves_and_comes_again() {
        let turns = turns(1);
        let mut turn = turns.try_enter(&image("a")).expect("free");
        let (mut at, start) = ("a", Instant::now());
        let images: HashMap<_, _> = ["a", "b", "c", "honest"].map(|name| (name, image(name))).into();
        let wait = |name: &str| {
            let mut entering = Box::pin(turns.enter(&images[name], None));
            assert!(entering.as_mut().now_or_never().is_none());
            entering
        };
        let mut waiting: HashMap<_, _> = ["b", "c", "honest"].map(|name| (name, wait(name))).into();
        let mut order = Vec::new();
        for round in 1..=12 {
            assert!(turns.is_over(&turn, start + TURN * round), "{at}");
            drop(turn);
            // One comes back as if it were new; of the others, what waits gets the place.
            waiting.insert(at, wait(at));
            let came = waiting.iter_mut().find_map(|(name, entering)| Some((*name, entering.as_mut().now_or_never()?)));
            let (name, came) = came.expect("somebody");
            waiting.remove(name);
            (at, turn) = (name, came);
            if at != "b" && waiting.contains_key("b") {
                // It leaves the line, and comes again.
                waiting.remove("b");
                waiting.insert("b", wait("b"));
            }
            order.push(at);
        }
        for honest in order.iter().enumerate().filter(|(_, name)| **name == "honest").map(|(at, _)| at) {
            let next = order[honest + 1..].iter().position(|name| *name == "honest");
            assert!(next.is_none_or(|between| between <= 3), "{order:?}");
        }
        assert!(order.iter().filter(|name| **name == "honest").count() >= 3, "{order:?}");
    }

    #[test]
    fn the_slowest_of_too_many_let_go_of_what_they_have() {
        let turns = turns(1);
        let _turn = turns.try_enter(&image("a")).expect("free");
        let lost: Vec<_> = (0..4).map(|_| CancellationToken::new()).collect();
        let image = image("b");
        let mut waiting = Vec::new();
        for (rate, lost) in [45_000, 5_000_000, 1, 60_000].into_iter().zip(&lost) {
            let kept = PartialSource { rate, lost: lost.clone() };
            let mut entering = Box::pin(turns.enter(&image, Some(kept)));
            assert!(entering.as_mut().now_or_never().is_none());
            waiting.push(entering);
        }
        let told: Vec<_> = lost.iter().map(CancellationToken::is_cancelled).collect();
        assert_eq!(told, [true, false, true, false]);
    }

    #[test]
    fn a_pace_is_judged_over_its_time() {
        let least = LeastRate { bytes: 1000, over: Duration::from_secs(60) };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = SourcePace::new(least, start, 0);
        let looks =
            [(59, 0, false), (60, 60_000, false), (119, 60_000, false), (120, 119_999, true), (185, 184_999, false)];
        for (seconds, read, slow) in looks {
            assert_eq!(pace.is_slow(at(seconds), read), slow, "{seconds}");
        }
        let mut again = SourcePace::new(least, at(200), 500_000);
        assert!(again.is_slow(at(260), 500_000) && !again.is_slow(at(320), 560_000));
    }

    #[test]
    fn an_import_has_time_by_its_size() {
        let longest = Longest { base: Duration::from_secs(1000), rate: 10 };
        for (total, seconds) in
            [(Some(0), 1000), (Some(500), 1050), (Some(5000), 1500), (Some(u64::MAX), 1500), (None, 1500)]
        {
            assert_eq!(longest.of(total, 5000), Duration::from_secs(seconds), "{total:?}");
        }
    }
}

//! Rate limit of the log: strangers cannot fill the disk, nor hide what known hosts say among their own lines.
//!
//! A line counts as that of the `peer` that it names, else of the `host`, else of the network card (`mac`). One that names
//! none of them counts as that of its place in the program: whoever brings it about cannot crowd out lines of other places.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, warn};
use tracing_appender::non_blocking::ErrorCounter;
use tracing_subscriber::layer::{Context, Filter};

use crate::api::MacAddress;
use crate::ration::{Rank, Ranks};

/// A stretch of time.
const STRETCH: Duration = Duration::from_secs(10);
/// Lines of one in a stretch.
pub(super) const LINES_OF_ONE: u32 = 30;
/// Lines of all strangers together in a stretch: 20 a second, some kilobytes.
pub(super) const LINES_OF_STRANGERS: u32 = 200;
/// Lines of all together of whom nobody can tell, with those of strangers.
pub(super) const LINES_OF_UNKNOWN: u32 = 600;
/// Lines of one place in the program in a stretch, of those that name nobody. Strangers share it with all others.
pub(super) const LINES_OF_A_PLACE: u32 = LINES_OF_STRANGERS;
/// Known hosts that are counted one by one.
const MOST_KNOWN: usize = 1 << 14;
/// The fields that say who brought a line about.
const WHO: [&str; 3] = ["peer", "host", "mac"];
/// Those who are named with how much was left out of them.
const MOST_NAMED: usize = 64;
/// Of a host's name.
const MOST_OF_A_NAME: usize = 128;

/// Rations the log's lines. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Ration(Arc<SharedRation>);

struct SharedRation {
    ranks: OnceLock<Ranks>,
    // std's lock: held to count only.
    lines: Mutex<LineRation>,
    begun: Instant,
    /// Lines that nobody took, and how many of them were told.
    lost: OnceLock<ErrorCounter>,
    told: AtomicUsize,
}

impl Default for Ration {
    fn default() -> Self {
        Self(Arc::new(SharedRation {
            ranks: OnceLock::new(),
            lines: Mutex::default(),
            begun: Instant::now(),
            lost: OnceLock::new(),
            told: AtomicUsize::new(0),
        }))
    }
}

impl Ration {
    /// From now on these say whose an address is. Before, nobody is known. A second call changes nothing.
    pub fn ranked_by(&self, ranks: Ranks) {
        self.0.ranks.set(ranks).ok();
    }

    /// Tells from time to time what was left out, until shutdown.
    pub async fn report(self, shutdown: CancellationToken) {
        loop {
            let ends = tokio::time::timeout(STRETCH, shutdown.cancelled()).await.is_ok();
            let left_out = self.lines().take_left_out();
            if left_out.lines > 0 {
                warn!("{left_out}");
            }
            let lost_lines = self.take_lost();
            if lost_lines > 0 {
                warn!(lost_lines, "lines of the log are lost: what reads them is too slow, or stands still");
            }
            if ends {
                return;
            }
        }
    }

    /// Lines are counted here that nobody took. A second call changes nothing.
    pub(super) fn counts_lost(&self, lost: ErrorCounter) {
        self.0.lost.set(lost).ok();
    }

    /// Lines lost since this was asked last.
    pub(super) fn take_lost(&self) -> usize {
        let lost = self.0.lost.get().map_or(0, ErrorCounter::dropped_lines);
        lost.saturating_sub(self.0.told.swap(lost, Ordering::Relaxed))
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, LineRation> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_say(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        let mut said = EventOrigin::default();
        // Most lines name nobody, and need not be read.
        if WHO.iter().any(|name| metadata.fields().field(name).is_some()) {
            event.record(&mut said);
        }
        let who = said.who().unwrap_or(LineOrigin::Place(metadata.name()));
        let rank = match &who {
            LineOrigin::Address(address) => self.0.ranks.get().map_or(Rank::Untold, |ranks| ranks(*address)),
            LineOrigin::Host(_) | LineOrigin::Place(_) => Rank::Known,
            LineOrigin::Machine(_) => Rank::Stranger,
        };
        rank == Rank::Own || self.lines().may_say(self.0.begun.elapsed().as_secs() / STRETCH.as_secs(), who, rank)
    }
}

impl<S> Filter<S> for Ration {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.may_say(event)
    }
}

/// Who brought a line about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LineOrigin {
    Address(IpAddr),
    Machine(MacAddress),
    Host(String),
    /// A place in the program, as `tracing` names it: "event" with file and line.
    Place(&'static str),
}

impl fmt::Display for LineOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Machine(mac) => mac.fmt(f),
            Self::Host(host) => host.fmt(f),
            Self::Place(place) => place.trim_start_matches("event ").fmt(f),
        }
    }
}

/// What an event says of who brought it about.
#[derive(Default)]
struct EventOrigin {
    peer: Option<IpAddr>,
    host: Option<String>,
    mac: Option<MacAddress>,
}

impl EventOrigin {
    /// The address, when it has one yet; else the host, else the network card.
    fn who(self) -> Option<LineOrigin> {
        let peer = self.peer.filter(|peer| !peer.is_unspecified()).map(LineOrigin::Address);
        peer.or(self.host.filter(|host| !host.is_empty()).map(LineOrigin::Host)).or(self.mac.map(LineOrigin::Machine))
    }
}

impl Visit for EventOrigin {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "peer" => self.peer = address(value),
            "host" => self.host = Some(value.chars().take(MOST_OF_A_NAME).collect()),
            "mac" => self.mac = value.parse().ok(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if WHO.contains(&field.name()) {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// An address, with or without a port; of IPv6 its network, since one machine may have any address of it.
fn address(text: &str) -> Option<IpAddr> {
    let address = text.parse::<SocketAddr>().map(|socket| socket.ip()).or_else(|_| text.parse::<IpAddr>()).ok()?;
    Some(match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    })
}

/// Lines in the present stretch, without clock. Bounded, whoever says what.
#[derive(Default)]
pub(super) struct LineRation {
    stretch: u64,
    known: HashMap<LineOrigin, u32>,
    /// Strangers and those of whom nobody can tell: at most one entry for each line that they may write.
    unknown: HashMap<LineOrigin, u32>,
    /// At most as many as there are places in the program.
    places: HashMap<LineOrigin, u32>,
    of_strangers: u32,
    of_unknown: u32,
    left_out: SuppressedLines,
}

/// What was left out.
#[derive(Default)]
pub(super) struct SuppressedLines {
    pub lines: u64,
    named: HashMap<LineOrigin, u64>,
}

impl LineRation {
    /// Whether this one may write a line now.
    pub fn may_say(&mut self, stretch: u64, who: LineOrigin, rank: Rank) -> bool {
        if self.stretch != stretch {
            let left_out = std::mem::take(&mut self.left_out);
            *self = Self { stretch, left_out, ..Self::default() };
        }
        let known = matches!(rank, Rank::Own | Rank::Known);
        let (table, most, room) = match (&who, rank) {
            (LineOrigin::Place(_), _) => (&mut self.places, LINES_OF_A_PLACE, true),
            (_, Rank::Own | Rank::Known) => (&mut self.known, LINES_OF_ONE, true),
            (_, Rank::Untold) => (&mut self.unknown, LINES_OF_ONE, self.of_unknown < LINES_OF_UNKNOWN),
            (_, Rank::Stranger) => {
                let room = self.of_strangers < LINES_OF_STRANGERS && self.of_unknown < LINES_OF_UNKNOWN;
                (&mut self.unknown, LINES_OF_ONE, room)
            }
        };
        let said = table.get(&who).copied().unwrap_or_default();
        if !room || said >= most || (said == 0 && table.len() >= MOST_KNOWN) {
            self.left_out.add(who);
            return false;
        }
        table.insert(who, said + 1);
        self.of_strangers += u32::from(rank == Rank::Stranger);
        self.of_unknown += u32::from(!known);
        true
    }

    /// What was left out since the last call.
    pub fn take_left_out(&mut self) -> SuppressedLines {
        std::mem::take(&mut self.left_out)
    }
}

impl SuppressedLines {
    fn add(&mut self, who: LineOrigin) {
        self.lines += 1;
        if self.named.len() < MOST_NAMED || self.named.contains_key(&who) {
            *self.named.entry(who).or_default() += 1;
        }
    }
}

impl fmt::Display for SuppressedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named: Vec<_> = self.named.iter().collect();
        named.sort_by_key(|(_, lines)| std::cmp::Reverse(**lines));
        write!(f, "{} lines were left out of the log, most of them of", self.lines)?;
        for (who, lines) in named.iter().take(8) {
            write!(f, " {who} ({lines})")?;
        }
        Ok(())
    }
}

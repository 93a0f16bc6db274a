//! Tests of the bandwidth scheduler.

use futures::FutureExt;

use super::*;

fn machine(number: u8) -> DownloadClient {
    DownloadClient::Machine([10, 0, 0, number].into())
}

fn host(number: u8) -> DownloadClient {
    DownloadClient::Host(format!("rack/{number}"))
}

/// Somebody in the queue who is known.
fn waits<T>(client: DownloadClient, waiter: T) -> QueuedDownload<T> {
    QueuedDownload { client, rank: Rank::Known, waiter }
}

fn stranger(number: u8) -> QueuedDownload<u8> {
    QueuedDownload { client: DownloadClient::Machine([10, 9, 9, number].into()), rank: Rank::Stranger, waiter: number }
}

#[test]
fn deployments_go_first_and_boots_take_what_they_leave() {
    let now = Instant::now();
    let mut table = Queues::<u8>::default();
    for number in 0..200 {
        table.boot.waiting.push_back(waits(machine(number), number));
    }
    assert_eq!(table.admit(now).len(), BOOT_PERMITS);
    // Five hosts with four chunks each pass by the 152 that wait.
    for number in 0..20 {
        table.deploy.waiting.push_back(waits(host(number % 5), number));
    }
    let admitted = table.admit(now);
    assert_eq!(admitted.len(), 20);
    assert!(admitted.iter().all(|one| matches!(one.client, DownloadClient::Host(_))));
    // Boots that end are not followed by others while chunks are under way, until few are left.
    let until_few = (BOOT_PERMITS - BOOT_PERMITS_BESIDE) as u8;
    for number in 0..until_few {
        table.leave(&machine(number), Rank::Known, now);
        assert!(table.admit(now).is_empty(), "{number}");
    }
    table.leave(&machine(until_few), Rank::Known, now);
    let next: Vec<_> = table.admit(now).into_iter().map(|one| one.waiter).collect();
    assert_eq!(next, [BOOT_PERMITS as u8], "in their order");
    // Nor between two chunks; but soon after the last.
    for number in 0..20 {
        table.leave(&host(number % 5), Rank::Known, now);
    }
    assert!(table.admit(now + UNDER_WAY / 2).is_empty());
    assert_eq!(table.admit(now + UNDER_WAY).len(), BOOT_PERMITS - BOOT_PERMITS_BESIDE);
}

#[test]
fn no_client_takes_the_places_of_others() {
    let now = Instant::now();
    let mut table = Queues::<u8>::default();
    for number in 0..100 {
        table.deploy.waiting.push_back(waits(host(1), number));
        table.boot.waiting.push_back(waits(machine(1), number));
    }
    table.deploy.waiting.push_back(waits(host(2), 100));
    let admitted = table.admit(now);
    let of = |client: DownloadClient| admitted.iter().filter(|one| one.client == client).count();
    assert_eq!((of(host(1)), of(host(2)), of(machine(1))), (OF_A_HOST, 1, OF_AN_ADDRESS));
    table.leave(&host(1), Rank::Known, now);
    assert_eq!(table.admit(now).len(), 1);
}

#[test]
fn who_has_none_goes_before_who_has_some() {
    let now = Instant::now();
    let mut table = Queues::<u8>::default();
    // Machine 1 asked a hundred times before the others came.
    table.boot.waiting.extend((0..100).map(|number| waits(machine(1), number)));
    assert_eq!(table.admit(now).len(), OF_AN_ADDRESS);
    for number in 2..=BOOT_PERMITS as u8 {
        table.boot.waiting.push_back(waits(machine(number), number));
    }
    assert_eq!(table.admit(now).len(), BOOT_PERMITS - OF_AN_ADDRESS);
    table.leave(&machine(1), Rank::Known, now);
    assert_eq!(table.admit(now)[0].client, machine(BOOT_PERMITS as u8));
}

#[test]
fn who_has_two_gives_one_to_who_has_none() {
    // deployments under way, rank of those who have two, of who comes, whether one gives way
    let rows = [
        (false, Rank::Known, Rank::Known, true),
        (false, Rank::Untold, Rank::Untold, true),
        (false, Rank::Known, Rank::Stranger, false),
        (true, Rank::Known, Rank::Known, false),
    ];
    for (deploying, rank, comes, gives) in rows {
        let now = Instant::now();
        let mut table = Queues::<u8>::default();
        let mut ends = Vec::new();
        let permits = if rank == Rank::Known { BOOT_PERMITS } else { RankShares::of_unknown(BOOT_PERMITS) };
        for number in 0..permits as u8 {
            let client = machine(number / 2);
            table.boot.waiting.push_back(QueuedDownload { client: client.clone(), rank, waiter: number });
            assert_eq!(table.admit(now).len(), 1);
            let (hangup, left) = (CancellationToken::new(), Arc::<AtomicBool>::default());
            let (taken, looked) = (Arc::default(), (now, 0));
            table.downloads.push(ActiveDownload { client, rank, left, taken, looked, hangup: hangup.clone() });
            ends.push(hangup);
        }
        if deploying {
            table.deploy.waiting.push_back(waits(host(1), 0));
            assert_eq!(table.admit(now).len(), 1);
        }
        // Those who have some wait for more, which ends nobody's.
        table.boot.waiting.push_back(QueuedDownload { client: machine(0), rank, waiter: 250 });
        assert!(table.admit(now).is_empty() && !table.rebalance(now));
        table.boot.waiting.push_back(QueuedDownload { client: machine(200), rank: comes, waiter: 251 });
        assert!(table.admit(now).is_empty());
        assert_eq!(table.rebalance(now), gives, "{deploying} {rank:?} {comes:?}");
        let ended: Vec<_> = (0..ends.len()).filter(|index| ends[*index].is_cancelled()).collect();
        let last = if gives { vec![ends.len() - 1] } else { Vec::new() };
        assert_eq!(ended, last, "the one that began last");
        let next: Vec<_> = table.admit(now).into_iter().map(|one| one.waiter).collect();
        assert_eq!(next, if gives { vec![251] } else { Vec::new() }, "and not who had some");
        assert!(!table.rebalance(now));
    }
}

#[test]
fn who_takes_next_to_nothing_loses_its_place_when_others_wait() {
    let (begin, enough) = (Instant::now(), LEAST_RATE * RATE_OVER.as_secs());
    let mut table = Queues::<u8>::default();
    for number in 0..BOOT_PERMITS as u8 {
        table.boot.waiting.push_back(waits(machine(number), number));
    }
    assert_eq!(table.admit(begin).len(), BOOT_PERMITS);
    let downloads = |number| ActiveDownload {
        client: machine(number),
        rank: Rank::Known,
        left: Arc::default(),
        taken: Arc::default(),
        looked: (begin, 0),
        hangup: CancellationToken::new(),
    };
    table.downloads = (0..BOOT_PERMITS as u8).map(downloads).collect();
    let seen: Vec<_> = table.downloads.iter().map(|one| (one.taken.clone(), one.hangup.clone())).collect();
    let cut = || seen.iter().enumerate().filter(|(_, (_, hangup))| hangup.is_cancelled()).map(|(index, _)| index);
    // Nobody minds as long as nobody waits.
    let now = begin + RATE_OVER;
    table.evict_slow(now);
    assert_eq!(cut().count(), 0);
    table.boot.waiting.extend((100..103).map(|number| waits(machine(number), number)));
    for (taken, _) in &seen[2..] {
        taken.fetch_add(enough, Ordering::Relaxed);
    }
    table.evict_slow(now);
    assert_eq!(cut().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(table.admit(now).len(), 2);
    // What one took before counts only once.
    for (taken, _) in &seen[3..] {
        taken.fetch_add(enough, Ordering::Relaxed);
    }
    table.evict_slow(now + RATE_OVER / 2);
    assert_eq!(cut().count(), 2, "not before the time is over");
    table.evict_slow(now + RATE_OVER);
    assert_eq!(cut().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((table.boot.shares.taken(), table.downloads.len()), (BOOT_PERMITS - 1, BOOT_PERMITS - 3));
}

#[test]
fn hosts_of_one_namespace_keep_no_others_waiting_however_many_and_slow_they_are() {
    let begin = Instant::now();
    let of = |namespace: &str, number: usize| DownloadClient::Host(format!("{namespace}/{number}"));
    let mut table = Queues::<u8>::default();
    let all = || (0..100).flat_map(|number| std::iter::repeat_n(number, OF_A_HOST));
    table.deploy.waiting.extend(all().map(|number| waits(of("bad", number), 0)));
    assert_eq!(table.admit(begin).len(), DEPLOY_PERMITS);
    let taking: Vec<_> = table.deploy.running.keys().cloned().collect();
    for client in taking {
        for _ in 0..table.deploy.running[&client] {
            table.downloads.push(ActiveDownload {
                client: client.clone(),
                rank: Rank::Known,
                left: Arc::default(),
                taken: Arc::default(),
                looked: (begin, 0),
                hangup: CancellationToken::new(),
            });
        }
    }
    // It came last, and has what is left of permits before all that wait.
    table.deploy.waiting.extend((0..OF_A_HOST).map(|_| waits(of("good", 1), 1)));
    table.leave(&of("bad", 0), Rank::Known, begin);
    assert_eq!(table.admit(begin).iter().map(|one| one.waiter).collect::<Vec<_>>(), [1]);
    table.evict_slow(begin + RATE_OVER);
    assert!(table.downloads.is_empty(), "nobody took anything");
    let next: Vec<_> = table.admit(begin + RATE_OVER).iter().map(|one| one.waiter).collect();
    assert_eq!(next.iter().filter(|one| **one == 1).count(), OF_A_HOST - 1);
}

#[tokio::test]
async fn a_place_that_was_taken_away_is_not_given_back_a_second_time() {
    let scheduler = DownloadScheduler::default();
    let (first, second) = (
        scheduler.acquire(machine(1), Rank::Known).await.expect("room"),
        scheduler.acquire(machine(1), Rank::Known).await.expect("room"),
    );
    let hangup = CancellationToken::new();
    let mut body = first.hold(Body::from("boot"), hangup.clone());
    let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
    assert!(frame.is_some_and(|frame| frame.is_ok()));
    {
        let mut state = scheduler.state();
        assert_eq!(state.downloads[0].taken.load(Ordering::Relaxed), 4);
        let (waiter, _granted) = oneshot::channel();
        state.boot.waiting.push_back(waits(machine(1), waiter));
        state.evict_slow(Instant::now() + RATE_OVER);
        assert_eq!((state.boot.shares.taken(), state.downloads.len()), (1, 0));
        state.boot.waiting.clear();
    }
    assert!(hangup.is_cancelled());
    drop(body);
    assert_eq!(scheduler.state().boot.shares.taken(), 1);
    drop(second);
    assert_eq!(scheduler.state().boot.shares.taken(), 0);
}

#[tokio::test]
async fn the_queue_is_not_filled_by_one() {
    let scheduler = DownloadScheduler::default();
    let mut held = Vec::new();
    for _ in 0..OF_AN_ADDRESS {
        held.push(scheduler.acquire(machine(1), Rank::Known).await.expect("room"));
    }
    let mut waiting: Vec<_> =
        (0..WAITING_OF_A_CLIENT).map(|_| Box::pin(scheduler.acquire(machine(1), Rank::Known))).collect();
    assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
    assert_eq!(scheduler.acquire(machine(1), Rank::Known).await.err(), Some(QueueFull));
    scheduler.acquire(machine(2), Rank::Known).await.expect("room");
    // Who went away waits no more.
    waiting.pop();
    assert!(scheduler.acquire(machine(1), Rank::Known).now_or_never().is_none());
}

#[tokio::test]
async fn places_come_back_when_bodies_end_and_when_nobody_waits_any_more() {
    let scheduler = DownloadScheduler::default();
    let mut held = Vec::new();
    for number in 0..BOOT_PERMITS {
        let permit = scheduler.acquire(machine(number as u8), Rank::Known).await.expect("room");
        held.push(permit.hold(Body::from("boot"), CancellationToken::new()));
    }
    let mut waits = Box::pin(scheduler.acquire(machine(100), Rank::Known));
    let mut gives_up = Box::pin(scheduler.acquire(machine(101), Rank::Known));
    let mut last = Box::pin(scheduler.acquire(machine(102), Rank::Known));
    assert!((&mut waits).now_or_never().is_none() && (&mut gives_up).now_or_never().is_none());
    assert!((&mut last).now_or_never().is_none());
    drop(gives_up);
    held.pop();
    let _first = waits.await;
    held.pop();
    let _second = last.await;
    // Without anybody leaving a permit, boots go on when the deployment is over.
    let chunk = scheduler.acquire(host(1), Rank::Known).await.expect("room");
    held.truncate(BOOT_PERMITS_BESIDE);
    let mut beside = Box::pin(scheduler.acquire(machine(103), Rank::Known));
    assert!((&mut beside).now_or_never().is_none());
    drop(chunk);
    assert!((&mut beside).now_or_never().is_none());
    beside.await.expect("room");
}

#[test]
fn strangers_have_a_quarter_together_and_the_known_go_first() {
    let (now, quarter) = (Instant::now(), BOOT_PERMITS / 4);
    let mut table = Queues::<u8>::default();
    // Thirty strangers were first, and take as much as one may.
    for number in 0..60 {
        table.boot.waiting.push_back(stranger(number % 30));
    }
    assert_eq!(table.admit(now).len(), quarter);
    for number in 0..BOOT_PERMITS as u8 {
        table.boot.waiting.push_back(waits(machine(number), number));
    }
    let admitted = table.admit(now);
    assert_eq!(admitted.len(), BOOT_PERMITS - quarter);
    assert!(admitted.iter().all(|one| one.rank == Rank::Known));
    // A permit of a known host's goes to the next one of those, however long strangers wait.
    table.leave(&machine(0), Rank::Known, now);
    let next = table.admit(now);
    assert_eq!((next.len(), next[0].rank), (1, Rank::Known));
    // While a deployment is under way there are few permits; what strangers hold of before does not count against them.
    let mut table = Queues::<u8>::default();
    table.boot.waiting.extend((0..30).map(stranger));
    assert_eq!(table.admit(now).len(), quarter);
    table.last_chunk = Some(now);
    table.boot.waiting.push_back(waits(machine(1), 1));
    assert_eq!(table.admit(now).len(), 1);
}

#[test]
fn a_slow_host_loses_its_place_to_no_stranger() {
    let begin = Instant::now();
    let mut table = Queues::<u8>::default();
    table.boot.waiting.push_back(waits(machine(1), 1));
    table.boot.waiting.extend((0..30).map(stranger));
    table.admit(begin);
    let downloads = |client: DownloadClient, rank| ActiveDownload {
        client,
        rank,
        left: Arc::default(),
        taken: Arc::default(),
        looked: (begin, 0),
        hangup: CancellationToken::new(),
    };
    table.downloads = vec![downloads(machine(1), Rank::Known), downloads(stranger(0).client, Rank::Stranger)];
    let cut: Vec<_> = table.downloads.iter().map(|one| one.hangup.clone()).collect();
    table.evict_slow(begin + RATE_OVER);
    assert_eq!(cut.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [false, true]);
    // To another host it does.
    table.boot.waiting.push_back(waits(machine(2), 2));
    table.evict_slow(begin + RATE_OVER);
    assert!(cut[0].is_cancelled());
}

#[tokio::test]
async fn a_known_host_gets_its_ramdisk_while_strangers_do_their_worst() {
    let scheduler = DownloadScheduler::default();
    // Ten strangers with ten addresses each, as much at once as they may.
    let address = |number: u8| DownloadClient::Machine([10, 9, 9, number].into());
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for number in 0..200_u8 {
        let mut enters = Box::pin(scheduler.acquire(address(number % 100), Rank::Stranger));
        match (&mut enters).now_or_never() {
            Some(permit) => held.push(permit.expect("room")),
            None => waiting.push(enters),
        }
    }
    let mut hosts = Vec::new();
    for number in 0..RankShares::of_unknown(BOOT_PERMITS) as u8 {
        hosts.push(scheduler.acquire(machine(number), Rank::Known).now_or_never().expect("a host waits for strangers"));
    }
    assert_eq!(held.len(), RankShares::of_strangers(BOOT_PERMITS));
}

//! Who may take the appliance's network and disk: deployments that are under way before machines that begin to boot.
//!
//! Kernels, ramdisks and chunks of images are what costs. Each answer that carries one takes a place until its last byte
//! is sent; who gets none waits in line. A rack that is powered on at once fills the line of boots, and a deployment
//! passes by it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Chunks of images sent at once.
pub const DEPLOY_PLACES: usize = 64;
/// Boot files sent at once.
pub const BOOT_PLACES: usize = 48;
/// Boot files that may begin while deployments are under way.
pub const BOOT_PLACES_BESIDE: usize = 8;
/// Chunks at once for one host; an agent asks for four.
const OF_A_HOST: usize = 8;
/// Boot files at once for one address; iPXE asks for one after the other.
const OF_AN_ADDRESS: usize = 2;
/// How long after its last chunk a deployment still counts as under way.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Whose an answer is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// A host that is being deployed, as `namespace/name`.
    Host(String),
    /// A machine that boots.
    Machine(IpAddr),
}

/// The places. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Lanes(Arc<Mutex<State>>);

/// A place, until it is dropped.
pub struct Place {
    lanes: Lanes,
    client: Client,
}

/// One of the two lines.
struct Line<T> {
    running: HashMap<Client, usize>,
    count: usize,
    waiting: VecDeque<(Client, T)>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { running: HashMap::new(), count: 0, waiting: VecDeque::new() }
    }
}

impl<T> Line<T> {
    /// The first in line that may go, when the line has a place.
    fn next(&mut self, places: usize, of_a_client: usize) -> Option<(Client, T)> {
        if self.count >= places {
            return None;
        }
        let may = |(client, _): &(Client, T)| self.running.get(client).is_none_or(|count| *count < of_a_client);
        let index = self.waiting.iter().position(may)?;
        let (client, waiter) = self.waiting.remove(index)?;
        *self.running.entry(client.clone()).or_default() += 1;
        self.count += 1;
        Some((client, waiter))
    }

    fn leave(&mut self, client: &Client) {
        let Some(count) = self.running.get_mut(client) else { return };
        *count -= 1;
        self.count -= 1;
        if *count == 0 {
            self.running.remove(client);
        }
    }
}

/// Both lines, without clock and waiters' own kind.
struct Table<T> {
    deploy: Line<T>,
    boot: Line<T>,
    last_chunk: Option<Instant>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { deploy: Line::default(), boot: Line::default(), last_chunk: None }
    }
}

impl<T> Table<T> {
    fn line(&mut self, client: &Client) -> &mut Line<T> {
        match client {
            Client::Host(_) => &mut self.deploy,
            Client::Machine(_) => &mut self.boot,
        }
    }

    /// Whether a deployment is under way.
    fn deploying(&self, now: Instant) -> bool {
        let lately = self.last_chunk.is_some_and(|last| now < last + UNDER_WAY);
        lately || self.deploy.count > 0 || !self.deploy.waiting.is_empty()
    }

    /// Everybody who may go now, in order.
    fn admit(&mut self, now: Instant) -> Vec<(Client, T)> {
        let mut admitted = Vec::new();
        while let Some(next) = self.deploy.next(DEPLOY_PLACES, OF_A_HOST) {
            admitted.push(next);
        }
        let places = if self.deploying(now) { BOOT_PLACES_BESIDE } else { BOOT_PLACES };
        while let Some(next) = self.boot.next(places, OF_AN_ADDRESS) {
            admitted.push(next);
        }
        admitted
    }

    fn leave(&mut self, client: &Client, now: Instant) {
        if matches!(client, Client::Host(_)) {
            self.last_chunk = Some(now);
        }
        self.line(client).leave(client);
    }
}

type State = Table<oneshot::Sender<Place>>;

impl Lanes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. Whoever stops waiting leaves the line.
    pub async fn enter(&self, client: Client) -> Place {
        let (sender, mut granted) = oneshot::channel();
        self.state().line(&client).waiting.push_back((client, sender));
        loop {
            self.admit();
            tokio::select! {
                biased;
                place = &mut granted => match place {
                    Ok(place) => return place,
                    // The sender is in the line for as long as this waits.
                    Err(_) => std::future::pending::<()>().await,
                },
                // A deployment ends without anybody leaving a place.
                () = tokio::time::sleep(UNDER_WAY) => {}
            }
        }
    }

    fn admit(&self) {
        let admitted = self.state().admit(Instant::now());
        for (client, sender) in admitted {
            // Who does not wait any more gives it back at once: the place comes back with the error and is dropped.
            drop(sender.send(Place { lanes: self.clone(), client }));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lanes.state().leave(&self.client, Instant::now());
        self.lanes.admit();
    }
}

impl Place {
    /// The answer's body, which keeps the place until it is sent or given up.
    pub fn hold(self, body: Body) -> Body {
        Body::new(Holding { body, _place: self })
    }
}

struct Holding {
    body: Body,
    _place: Place,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn machine(number: u8) -> Client {
        Client::Machine([10, 0, 0, number].into())
    }

    fn host(number: u8) -> Client {
        Client::Host(format!("rack/{number}"))
    }

    #[test]
    fn deployments_go_first_and_boots_take_what_they_leave() {
        let now = Instant::now();
        let mut table = Table::<u8>::default();
        for number in 0..200 {
            table.boot.waiting.push_back((machine(number), number));
        }
        assert_eq!(table.admit(now).len(), BOOT_PLACES);
        // Five hosts with four chunks each pass by the 152 that wait.
        for number in 0..20 {
            table.deploy.waiting.push_back((host(number % 5), number));
        }
        let admitted = table.admit(now);
        assert_eq!(admitted.len(), 20);
        assert!(admitted.iter().all(|(client, _)| matches!(client, Client::Host(_))));
        // Boots that end are not followed by others while chunks are under way, until few are left.
        for number in 0..40 {
            table.leave(&machine(number), now);
            assert!(table.admit(now).is_empty(), "{number}");
        }
        table.leave(&machine(40), now);
        let next: Vec<_> = table.admit(now).into_iter().map(|(_, number)| number).collect();
        assert_eq!(next, [48], "in their order");
        // Nor between two chunks; but soon after the last.
        for number in 0..20 {
            table.leave(&host(number % 5), now);
        }
        assert!(table.admit(now + UNDER_WAY / 2).is_empty());
        assert_eq!(table.admit(now + UNDER_WAY).len(), BOOT_PLACES - BOOT_PLACES_BESIDE);
    }

    #[test]
    fn no_client_takes_the_places_of_others() {
        let now = Instant::now();
        let mut table = Table::<u8>::default();
        for number in 0..100 {
            table.deploy.waiting.push_back((host(1), number));
            table.boot.waiting.push_back((machine(1), number));
        }
        table.deploy.waiting.push_back((host(2), 100));
        let admitted = table.admit(now);
        let of = |client: Client| admitted.iter().filter(|(other, _)| *other == client).count();
        assert_eq!((of(host(1)), of(host(2)), of(machine(1))), (OF_A_HOST, 1, OF_AN_ADDRESS));
        table.leave(&host(1), now);
        assert_eq!(table.admit(now).len(), 1);
    }

    #[tokio::test]
    async fn places_come_back_when_bodies_end_and_when_nobody_waits_any_more() {
        let lanes = Lanes::default();
        let mut held = Vec::new();
        for number in 0..BOOT_PLACES {
            held.push(lanes.enter(machine(number as u8)).await.hold(Body::from("boot")));
        }
        let mut waits = Box::pin(lanes.enter(machine(100)));
        let mut gives_up = Box::pin(lanes.enter(machine(101)));
        let mut last = Box::pin(lanes.enter(machine(102)));
        assert!((&mut waits).now_or_never().is_none() && (&mut gives_up).now_or_never().is_none());
        assert!((&mut last).now_or_never().is_none());
        drop(gives_up);
        held.pop();
        let _first = waits.await;
        held.pop();
        let _second = last.await;
        // Without anybody leaving a place, boots go on when the deployment is over.
        let chunk = lanes.enter(host(1)).await;
        held.truncate(BOOT_PLACES_BESIDE);
        let mut beside = Box::pin(lanes.enter(machine(103)));
        assert!((&mut beside).now_or_never().is_none());
        drop(chunk);
        assert!((&mut beside).now_or_never().is_none());
        beside.await;
    }
}

//! DNS resolution, a few names at a time.
//!
//! A lookup takes one of the threads that the whole program has for what blocks, until DNS answers or the C library gives
//! up, which is later than anybody waits; and whoever writes a host chooses whose DNS servers are asked. So few lookups
//! are under way at once, fewer for the objects of one namespace, and a name that was resolved before does not depend on those
//! of others: when there is no answer in time, the last one counts.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Lookups under way at once.
const AT_ONCE: usize = 64;
/// Of these, for what is done about the objects of one namespace.
const OF_A_NAMESPACE: usize = 8;
/// How long an answer is waited for, where there is an older one.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an answer is good for that.
const GOOD_FOR: Duration = Duration::from_secs(24 * 3600);
/// Names whose last answer is remembered.
const REMEMBERED: usize = 4096;

tokio::task_local! {
    static NAMESPACE: String;
}

/// Does something about an object of this namespace: names that are resolved on the way wait for no others but the namespace's.
pub async fn for_namespace<T>(namespace: String, done: impl Future<Output = T>) -> T {
    NAMESPACE.scope(namespace, done).await
}

static NAMES: LazyLock<NameResolver> = LazyLock::new(|| NameResolver::new(AT_ONCE, PATIENCE));

/// The addresses of a name, with this port. Takes as long as DNS does, where there is no earlier answer.
///
/// # Errors
///
/// Those of the C library.
pub async fn lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    NAMES.lookup(name, port).await
}

struct NameResolver {
    places: Arc<Semaphore>,
    /// Of each namespace that has lookups; what is done for none is one, too.
    shares: Mutex<HashMap<String, Arc<Semaphore>>>,
    patience: Duration,
    known: Arc<Mutex<HashMap<String, ResolvedAddresses>>>,
}

struct ResolvedAddresses {
    at: Instant,
    addresses: Vec<IpAddr>,
}

impl NameResolver {
    fn new(at_once: usize, patience: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(at_once)), shares: Mutex::default(), patience, known: Arc::default() }
    }

    fn share(&self) -> Arc<Semaphore> {
        let namespace = NAMESPACE.try_with(String::clone).unwrap_or_default();
        let mut shares = lock(&self.shares);
        // Who asks, or waits, holds his own.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        shares.entry(namespace).or_insert_with(|| Arc::new(Semaphore::new(OF_A_NAMESPACE))).clone()
    }

    async fn lookup(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = self.ask(name, port);
        tokio::pin!(asked);
        if let Ok(found) = timeout(self.patience, &mut asked).await {
            return found;
        }
        if let Some(answer) = lock(&self.known).get(name).filter(|answer| answer.at.elapsed() < GOOD_FOR) {
            tracing::debug!(name, "DNS did not answer in time: the last answer is used");
            return Ok(answer.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect());
        }
        asked.await
    }

    async fn ask(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let share = self.share().acquire_owned().await.map_err(io::Error::other)?;
        let place = self.places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (known, name) = (self.known.clone(), name.to_owned());
        // Has its place for as long as it has its thread, also when whoever asked has gone.
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host((name.as_str(), port)).await;
            drop((place, share));
            let found: Vec<SocketAddr> = found?.collect();
            remember(&mut lock(&known), name, found.iter().map(SocketAddr::ip).collect());
            Ok(found)
        });
        lookup.await.map_err(io::Error::other)?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remember(known: &mut HashMap<String, ResolvedAddresses>, name: String, addresses: Vec<IpAddr>) {
    if addresses.is_empty() {
        return;
    }
    if known.len() >= REMEMBERED && !known.contains_key(&name) {
        let oldest = known.iter().min_by_key(|(_, answer)| answer.at).map(|(name, _)| name.clone());
        oldest.map(|oldest| known.remove(&oldest));
    }
    known.insert(name, ResolvedAddresses { at: Instant::now(), addresses });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_was_resolved_does_not_wait_for_the_slow_names_of_others() {
        let names = NameResolver::new(1, Duration::from_millis(20));
        let first = names.lookup("localhost", 80).await.expect("resolved");
        assert!(first.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        // Another's lookup has the only place, for ever.
        let place = names.places.clone().acquire_owned().await.expect("a place");
        let again = names.lookup("localhost", 81).await.expect("remembered");
        assert_eq!(again.len(), first.len());
        assert!(again.iter().all(|address| address.ip().is_loopback() && address.port() == 81));
        let other = names.lookup("127.0.0.2", 80);
        tokio::pin!(other);
        assert!(timeout(Duration::from_millis(50), &mut other).await.is_err(), "no answer yet, and none before");
        drop(place);
        assert!(timeout(Duration::from_secs(20), other).await.expect("in time").is_ok());
    }

    #[tokio::test]
    async fn the_slow_names_of_one_namespace_hold_up_no_other() {
        let names = NameResolver::new(OF_A_NAMESPACE + 1, Duration::from_millis(20));
        // All that a namespace may have are asked for, and never answered.
        let share = for_namespace("slow".into(), async { names.share() }).await;
        let held = share.clone().acquire_many_owned(OF_A_NAMESPACE as u32).await.expect("its share");
        let of = |namespace: &str| for_namespace(namespace.into(), names.lookup("127.0.0.2", 80));
        let slow = of("slow");
        tokio::pin!(slow);
        assert!(timeout(Duration::from_millis(50), &mut slow).await.is_err());
        for namespace in ["other", ""] {
            assert!(timeout(Duration::from_secs(20), of(namespace)).await.expect("in time").is_ok());
        }
        assert!(timeout(Duration::from_secs(20), names.lookup("127.0.0.2", 80)).await.expect("in time").is_ok());
        drop((held, share));
        assert!(timeout(Duration::from_secs(20), slow).await.expect("in time").is_ok());
        assert!(lock(&names.shares).len() <= 4);
        names.share();
        assert_eq!(lock(&names.shares).len(), 1, "who has none is forgotten");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = HashMap::new();
        for number in 0..REMEMBERED + 10 {
            remember(&mut known, format!("n{number}"), vec![IpAddr::from([127, 0, 0, 1])]);
        }
        remember(&mut known, "none".into(), Vec::new());
        assert_eq!((known.len(), known.contains_key("n9"), known.contains_key("n10")), (REMEMBERED, false, true));
    }
}

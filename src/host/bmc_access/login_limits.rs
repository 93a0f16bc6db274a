//! Rate limit of BMC logins.
//!
//! Logins that BMCs refuse, rationed: a BMC locks an account after a few of them, and anybody who writes a host and a
//! Secret chooses where the appliance logs in, and as whom.
//!
//! What counts is the controller: its IP address, in one form, at any port and by any protocol. A namespace whose
//! credentials were refused there waits before others are tried, longer where hosts of another namespace use the
//! controller. Credentials that were good there are never held up by others. [`pause`] decides; nothing here is stored,
//! so after a restart the count begins anew.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use crate::bmc::Credentials;

/// Longest pause after refused logins in a namespace of its own, once the first correction was refused too.
const SHORT_PAUSE: Duration = Duration::from_secs(10);
/// Logins refused to a namespace at a controller that another one uses, before it pauses.
const FREE: u32 = 2;
/// The first pause there, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(300);
pub(in crate::host) const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Refused logins are forgotten this long after the last one.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);
/// Credentials of one namespace that are known to be good at one controller; the one unused for longest makes room.
const MAX_GOOD: usize = 1024;
/// Good credentials are forgotten when they were not used for so long.
const GOOD_FOR: Duration = Duration::from_secs(24 * 3600);
/// Controllers that are remembered for one namespace.
const MAX_CONTROLLERS: usize = 16_384;

/// What was refused to a namespace at a controller, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RefusalCount {
    /// Times that somebody tried.
    tries: u32,
    /// Logins in these. One try may take two, where a BMC does not say whether it has sessions.
    logins: u32,
}

/// How long a namespace waits after its last refused login before other credentials are tried. `shared`: hosts of another
/// namespace use the controller. `retry` is the first rest after a failure.
///
/// The first correction is tried at once, unless the controller is shared and refused two logins already. There the pause
/// is five minutes, and doubles with every second login more, up to an hour.
fn pause(count: RefusalCount, shared: bool, retry: Duration) -> Duration {
    let short = if count.tries > 1 { retry.min(SHORT_PAUSE) } else { Duration::ZERO };
    if !shared || count.logins < FREE {
        return short;
    }
    let doublings = ((count.logins - FREE) / 2).min(8);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

/// Credentials that can be compared, and not be read.
type Fingerprint = [u8; 32];

/// What is known of the controllers that namespaces log in at, and of the hosts that are held up.
pub(in crate::host) struct LoginLimits {
    salt: [u8; 32],
    known: Mutex<LoginState>,
}

#[derive(Default)]
struct LoginState {
    namespaces: HashMap<String, HashMap<IpAddr, Controller>>,
    /// By UID of the host.
    held: HashMap<String, Timestamp>,
}

/// A controller, as one namespace uses it.
#[derive(Default)]
struct Controller {
    refused: Option<RefusedLogins>,
    good: HashMap<Fingerprint, Instant>,
    /// Whether a host of the namespace is there for sure: not so with a name of several addresses.
    used: bool,
    /// Credentials that are not known to be good are tried one after the other.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Copy)]
struct RefusedLogins {
    count: RefusalCount,
    last: Instant,
}

/// Who logs in where.
#[derive(Clone)]
pub(in crate::host) struct LoginAttempt {
    pub(in crate::host) namespace: String,
    /// The controllers behind the address, each in one form.
    pub(in crate::host) controllers: Vec<IpAddr>,
    pub(in crate::host) fingerprint: Fingerprint,
    /// Whether a registered host of another namespace names one of the controllers.
    pub(in crate::host) shared: bool,
    /// First rest after a failure.
    pub(in crate::host) retry: Duration,
}

/// Why there is no login now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct LoginHeld {
    pub(in crate::host) until: Timestamp,
    /// Logins that were refused.
    pub(in crate::host) logins: u32,
    pub(in crate::host) shared: bool,
}

/// What an attempt may do.
#[derive(Debug)]
pub(in crate::host) enum LoginVerdict {
    /// Its credentials were good.
    Known,
    /// After all others of the namespace that wait for these.
    Try(Vec<Arc<tokio::sync::Mutex<()>>>),
    /// Not now.
    Held(LoginHeld),
}

impl Default for LoginLimits {
    fn default() -> Self {
        Self { salt: rand::random(), known: Mutex::default() }
    }
}

impl LoginLimits {
    fn known(&self) -> MutexGuard<'_, LoginState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::host) fn fingerprint(&self, credentials: &Credentials) -> Fingerprint {
        let (user, password) = (credentials.username.as_bytes(), credentials.password.expose_secret().as_bytes());
        let hash = Sha256::new().chain_update(self.salt).chain_update(user.len().to_le_bytes());
        hash.chain_update(user).chain_update(password).finalize().into()
    }

    /// What the attempt may do at this time.
    pub(in crate::host) fn judge(&self, attempt: &LoginAttempt, now: Instant) -> LoginVerdict {
        let mut known = self.known();
        let shared = |known: &LoginState, at: &IpAddr| attempt.shared || known.used_by_another(&attempt.namespace, at);
        let held = |known: &LoginState, at: &IpAddr| {
            let refused = known.namespaces.get(&attempt.namespace)?.get(at)?.refused?;
            let shared = shared(known, at);
            let pause = pause(refused.count, shared, attempt.retry);
            let left = pause.saturating_sub(now.saturating_duration_since(refused.last));
            // By the clock as it is now: it may have been set since.
            let until = Timestamp::now().checked_add(left).unwrap_or(Timestamp::MAX);
            let logins = refused.count.logins;
            (!left.is_zero()).then_some(LoginHeld { until, logins, shared })
        };
        let is_good = |known: &LoginState, at: &IpAddr| {
            let there = known.namespaces.get(&attempt.namespace).and_then(|all| all.get(at));
            there.is_some_and(|there| there.good.contains_key(&attempt.fingerprint))
        };
        if attempt.controllers.iter().all(|at| is_good(&known, at)) {
            return LoginVerdict::Known;
        }
        if let Some(held) = attempt.controllers.iter().filter_map(|at| held(&known, at)).max_by_key(|held| held.until) {
            return LoginVerdict::Held(held);
        }
        let mine = known.namespaces.entry(attempt.namespace.clone()).or_default();
        if mine.len() + attempt.controllers.len() > MAX_CONTROLLERS {
            mine.retain(|_, there| there.is_of_use(now));
        }
        if mine.len() + attempt.controllers.len() > MAX_CONTROLLERS {
            let until = Timestamp::now().checked_add(FIRST_PAUSE).unwrap_or(Timestamp::MAX);
            return LoginVerdict::Held(LoginHeld { until, logins: 0, shared: false });
        }
        // In one order, so that two do not wait for each other.
        let mut order = attempt.controllers.clone();
        order.sort();
        order.dedup();
        LoginVerdict::Try(order.into_iter().map(|at| mine.entry(at).or_default().turn.clone()).collect())
    }

    /// The credentials were good.
    pub(in crate::host) fn accepted(&self, attempt: &LoginAttempt, now: Instant) {
        let mut known = self.known();
        let mine = known.namespaces.entry(attempt.namespace.clone()).or_default();
        let certain = attempt.controllers.len() == 1;
        for at in &attempt.controllers {
            let there = mine.entry(*at).or_default();
            there.used |= certain;
            there.good.insert(attempt.fingerprint, now);
            if there.good.len() > MAX_GOOD {
                let oldest = there.good.iter().min_by_key(|(_, used)| **used).map(|(good, _)| *good);
                oldest.map(|oldest| there.good.remove(&oldest));
            }
        }
    }

    /// The controller refused so many logins of this attempt.
    pub(in crate::host) fn refused(&self, attempt: &LoginAttempt, logins: u32, now: Instant) {
        let mut known = self.known();
        let mine = known.namespaces.entry(attempt.namespace.clone()).or_default();
        for at in &attempt.controllers {
            let there = mine.entry(*at).or_default();
            there.good.remove(&attempt.fingerprint);
            let before = there.refused.filter(|before| now.saturating_duration_since(before.last) < FORGOTTEN);
            let before = before.map(|before| before.count).unwrap_or_default();
            let count = RefusalCount {
                tries: before.tries.saturating_add(1),
                logins: before.logins.saturating_add(logins.max(1)),
            };
            there.refused = Some(RefusedLogins { count, last: now });
        }
    }

    /// Until when the host is held up; none: it is not.
    pub(in crate::host) fn hold(&self, uid: &str, until: Option<Timestamp>) {
        let mut known = self.known();
        match until {
            Some(until) => known.held.insert(uid.to_owned(), until),
            None => known.held.remove(uid),
        };
    }

    /// Until when the host was held up last.
    pub(in crate::host) fn held(&self, uid: &str) -> Option<Timestamp> {
        self.known().held.get(uid).copied()
    }

    /// Forgets what is of no use any more, with the hosts that are gone.
    pub(in crate::host) fn tidy(&self, uid: &str, now: Instant) {
        let mut known = self.known();
        known.held.remove(uid);
        for controllers in known.namespaces.values_mut() {
            controllers.retain(|_, there| there.is_of_use(now));
        }
        known.namespaces.retain(|_, controllers| !controllers.is_empty());
    }
}

impl LoginState {
    fn used_by_another(&self, namespace: &str, at: &IpAddr) -> bool {
        let others = self.namespaces.iter().filter(|(other, _)| *other != namespace);
        others.filter_map(|(_, all)| all.get(at)).any(|there| there.used && !there.good.is_empty())
    }
}

impl Controller {
    fn is_of_use(&mut self, now: Instant) -> bool {
        self.good.retain(|_, used| now.saturating_duration_since(*used) < GOOD_FOR);
        let fresh = |refused: &RefusedLogins| now.saturating_duration_since(refused.last) < FORGOTTEN;
        Arc::strong_count(&self.turn) > 1 || !self.good.is_empty() || self.refused.as_ref().is_some_and(fresh)
    }
}

/// The controllers behind these addresses: one each, whatever its form.
pub(in crate::host) fn controllers(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let all: HashSet<IpAddr> = addresses.into_iter().map(crate::outbound::plain).collect();
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(60);

    #[test]
    fn how_long_a_namespace_waits_after_refused_logins() {
        // tries, logins in them, whether another namespace uses the controller, seconds to wait
        let rows = [
            (0, 0, false, 0),
            (1, 2, false, 0),
            (2, 3, false, 10),
            (90, 180, false, 10),
            (0, 0, true, 0),
            (1, 1, true, 0),
            (1, 2, true, 300),
            (2, 2, true, 300),
            (3, 3, true, 300),
            (4, 4, true, 600),
            (6, 6, true, 1200),
            (8, 8, true, 2400),
            (10, 10, true, 3600),
            (u32::MAX, u32::MAX, true, 3600),
        ];
        for (tries, logins, shared, seconds) in rows {
            let waits = pause(RefusalCount { tries, logins }, shared, RETRY);
            assert_eq!(waits, Duration::from_secs(seconds), "{tries} {logins} {shared}");
        }
        let quick = Duration::from_millis(20);
        assert_eq!(pause(RefusalCount { tries: 2, logins: 4 }, false, quick), quick);
    }

    fn attempt(namespace: &str, at: &[&str], fingerprint: u8) -> LoginAttempt {
        LoginAttempt {
            namespace: namespace.into(),
            controllers: controllers(at.iter().map(|at| at.parse::<IpAddr>().unwrap())),
            fingerprint: [fingerprint; 32],
            shared: false,
            retry: RETRY,
        }
    }

    fn holds(logins: &LoginLimits, attempt: &LoginAttempt, now: Instant) -> bool {
        matches!(logins.judge(attempt, now), LoginVerdict::Held(_))
    }

    #[test]
    fn one_controller_is_one_in_every_form_and_good_credentials_are_not_held_up() {
        let (logins, start) = (LoginLimits::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let owner = attempt("rack", &["10.9.1.1"], 1);
        assert!(matches!(logins.judge(&owner, start), LoginVerdict::Try(turns) if turns.len() == 1));
        logins.accepted(&owner, start);
        assert!(matches!(logins.judge(&owner, start), LoginVerdict::Known));

        // Refused once, by one form of the address: two logins in it.
        logins.refused(&attempt("tenant", &["::ffff:10.9.1.1"], 7), 2, start);
        for form in ["10.9.1.1", "::ffff:10.9.1.1", "64:ff9b::a09:101", "2002:a09:101::1"] {
            assert!(holds(&logins, &attempt("tenant", &[form], 8), after(299)), "{form}");
            assert!(!holds(&logins, &attempt("tenant", &[form], 8), after(300)), "{form}");
            assert!(holds(&logins, &attempt("tenant", &["10.9.7.7", form], 8), start), "behind a name, {form}");
        }
        assert!(!holds(&logins, &attempt("tenant", &["10.9.1.2"], 8), start));
        assert!(matches!(logins.judge(&owner, start), LoginVerdict::Known));
        assert!(!holds(&logins, &attempt("rack", &["10.9.1.1"], 9), start), "nothing was refused to the owner");

        // The pause grows, and a login that is let in meanwhile makes nobody forget.
        logins.refused(&attempt("tenant", &["10.9.1.1"], 8), 2, after(300));
        let other = attempt("tenant", &["10.9.1.1"], 5);
        logins.accepted(&other, after(301));
        assert!(matches!(logins.judge(&other, after(302)), LoginVerdict::Known));
        assert!(holds(&logins, &attempt("tenant", &["10.9.1.1"], 9), after(899)));
        assert!(!holds(&logins, &attempt("tenant", &["10.9.1.1"], 9), after(900)));
        // Two hours later all is forgotten.
        logins.refused(&attempt("tenant", &["10.9.1.1"], 9), 1, after(300 + 7200));
        assert!(!holds(&logins, &attempt("tenant", &["10.9.1.1"], 9), after(300 + 7200)));
    }

    #[test]
    fn a_registered_host_counts_before_its_first_login_and_a_name_of_many_addresses_shares_nothing() {
        let (logins, now) = (LoginLimits::default(), Instant::now());
        let mut named = attempt("tenant", &["10.9.1.1"], 7);
        logins.refused(&named, 2, now);
        assert!(!holds(&logins, &named, now));
        named.shared = true;
        assert!(holds(&logins, &named, now));
        // The login was at one of the two, and nobody knows at which.
        logins.accepted(&attempt("rack", &["10.9.1.1", "10.9.1.2"], 1), now);
        named.shared = false;
        assert!(!holds(&logins, &named, now));
        // The refused ones are tried again, and not believed.
        logins.accepted(&named, now);
        logins.refused(&named, 1, now);
        assert!(!matches!(logins.judge(&named, now), LoginVerdict::Known));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_nobody_makes_room_by_being_refused() {
        let (logins, now) = (LoginLimits::default(), Instant::now());
        let at = |number: usize| format!("2001:db8::{:x}:{:x}", number >> 16, number & 0xffff);
        let first = attempt("tenant", &[&at(1)], 1);
        for number in 1..=MAX_CONTROLLERS {
            logins.refused(&attempt("tenant", &[&at(number)], 1), 1, now);
        }
        assert!(holds(&logins, &attempt("tenant", &[&at(70_000)], 1), now));
        assert!(!holds(&logins, &attempt("rack", &[&at(70_000)], 1), now), "the others have room");
        logins.refused(&first, 1, now);
        assert!(holds(&logins, &first, now), "its refusals are not forgotten");
        assert!(!holds(&logins, &attempt("tenant", &[&at(70_000)], 1), now + FORGOTTEN));
        logins.hold("uid", Some(Timestamp::UNIX_EPOCH));
        logins.tidy("uid", now + GOOD_FOR);
        assert!(logins.held("uid").is_none() && logins.known().namespaces.is_empty());
        for number in 0..=u16::try_from(MAX_GOOD).unwrap() {
            let mut good = first.clone();
            good.fingerprint[..2].copy_from_slice(&number.to_le_bytes());
            logins.accepted(&good, now + Duration::from_secs(u64::from(number)));
        }
        assert_eq!(logins.known().namespaces["tenant"].values().next().unwrap().good.len(), MAX_GOOD);
    }
}

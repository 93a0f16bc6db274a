//! The registry of BMC connections: one for each BMC, with its sessions and its lock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;

use super::address::BmcEndpoint;
use super::ipmi::IpmiBmc;
use super::locate::locate;
use super::quirks::Quirks;
use super::redfish::{self, RedfishBmc};
use super::{
    Bmc, BmcAddress, BmcError, BmcSettings, BootDevice, Credentials, FirmwareMode, PowerAction, PowerState, ProbeReport,
};

/// Connections that nobody used for so long are let go: of hosts that are gone, and of former passwords.
const IDLE: Duration = Duration::from_secs(3600);
/// Shortest time between two looks for such.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long closing the session of one may take.
const LOG_OUT: Duration = Duration::from_secs(60);

/// Hands out connections; the same one for the same address, account and certificate check.
///
/// All connections to one `host:port` share one lock, so that a BMC sees one exchange at a time, and systems behind
/// one Redfish service share one login.
pub struct BmcRegistry {
    settings: Arc<BmcSettings>,
    tls: redfish::Configs,
    inner: Mutex<Inner>,
    #[cfg(test)]
    always: Option<Arc<dyn Bmc>>,
}

#[derive(Default)]
struct Inner {
    clock: u64,
    /// When idle ones were looked for last.
    looked: Option<Instant>,
    hosts: HashMap<BmcHostKey, HostConnections>,
}

/// Redfish and IPMI of one BMC have different ports, and locks of their own.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BmcHostKey {
    redfish: bool,
    /// Its places, whatever name they have; as the address is spelled where it was not resolved. All of them: who names the
    /// BMC of others beside one of their own shares no lock with them, for their own may be slow.
    peer: String,
}

impl BmcHostKey {
    fn of(address: &BmcAddress, places: &[SocketAddr]) -> Self {
        let plain = |endpoint: &SocketAddr| SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port());
        let mut places: Vec<_> = places.iter().map(plain).collect();
        places.sort();
        let all = places.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
        let peer = if all.is_empty() { address.peer() } else { all };
        Self { redfish: address.driver.is_redfish(), peer }
    }
}

/// Whether these are the same places, in any order.
fn same_places(a: &[SocketAddr], b: &[SocketAddr]) -> bool {
    a.len() == b.len() && a.iter().all(|endpoint| b.contains(endpoint))
}

#[derive(Default)]
struct HostConnections {
    lock: Arc<tokio::sync::Mutex<()>>,
    has_sessions: Arc<AtomicBool>,
    services: Vec<RedfishService>,
    connections: Vec<BmcConnection>,
}

struct RedfishService {
    base: String,
    places: Vec<SocketAddr>,
    credentials: Credentials,
    verify: bool,
    client: Arc<redfish::RedfishClient>,
}

struct BmcConnection {
    address: BmcAddress,
    places: Vec<SocketAddr>,
    credentials: Credentials,
    verify: bool,
    /// The profiles by which it was, or will be, identified.
    quirks: Arc<Quirks>,
    used: u64,
    /// The same by the clock.
    at: Instant,
    bmc: Arc<dyn Bmc>,
}

fn same(a: &Credentials, b: &Credentials) -> bool {
    let (x, y) = (a.password.expose_secret().as_bytes(), b.password.expose_secret().as_bytes());
    a.username == b.username && bool::from(x.ct_eq(y))
}

impl Default for BmcRegistry {
    fn default() -> Self {
        Self::new(BmcSettings::default())
    }
}

impl BmcRegistry {
    /// An empty registry.
    pub fn new(settings: BmcSettings) -> Self {
        Self {
            settings: Arc::new(settings),
            tls: redfish::Configs::default(),
            inner: Mutex::default(),
            #[cfg(test)]
            always: None,
        }
    }

    /// Gives this connection for every address.
    #[cfg(test)]
    pub(crate) fn always(bmc: Arc<dyn Bmc>) -> Self {
        Self { always: Some(bmc), ..Self::default() }
    }

    /// Where the BMC of an address is, for [`Self::connect_at`].
    ///
    /// # Errors
    ///
    /// Those of [`locate`].
    pub async fn locate(&self, address: &BmcAddress) -> Result<Vec<SocketAddr>, BmcError> {
        #[cfg(test)]
        if self.always.is_some() {
            return Ok(Vec::new());
        }
        locate(address, self.settings.guard.as_ref()).await
    }

    /// The connection for an address. Nothing is sent before it is used; `verify` false accepts any TLS certificate.
    pub fn connect(&self, address: &BmcAddress, credentials: &Credentials, verify: bool) -> Arc<dyn Bmc> {
        self.connect_at(address, &[], credentials, verify)
    }

    /// The same, to these places and no others, whatever the address's name is resolved to later.
    pub fn connect_at(
        &self,
        address: &BmcAddress,
        places: &[SocketAddr],
        credentials: &Credentials,
        verify: bool,
    ) -> Arc<dyn Bmc> {
        #[cfg(test)]
        if let Some(bmc) = &self.always {
            return bmc.clone();
        }
        let (mut inner, at) = (self.lock(), Instant::now());
        inner.clock += 1;
        let now = inner.clock;
        inner.forget_idle(at);
        let key = BmcHostKey::of(address, places);
        let quirks = self.settings.quirks.get();
        let known = inner.hosts.get_mut(&key).and_then(|host| {
            let fits = |c: &&mut BmcConnection| {
                c.address == *address
                    && same_places(&c.places, places)
                    && c.verify == verify
                    && same(&c.credentials, credentials)
                    && Arc::ptr_eq(&c.quirks, &quirks)
            };
            host.connections.iter_mut().find(fits)
        });
        if let Some(connection) = known {
            (connection.used, connection.at) = (now, at);
            return connection.bmc.clone();
        }
        inner.make_room(self.settings.max_connections.max(1));
        let host = inner.hosts.entry(key).or_default();
        // Other profiles were loaded since: the login stays, and the controller is identified anew.
        host.connections.retain(|c| c.is_used() || Arc::ptr_eq(&c.quirks, &quirks));
        let bmc = host.open(address, places, credentials, verify, (&self.settings, &self.tls));
        host.connections.push(BmcConnection {
            address: address.clone(),
            places: places.to_vec(),
            credentials: credentials.clone(),
            verify,
            quirks,
            used: now,
            at,
            bmc: bmc.clone(),
        });
        bmc
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections are kept.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Logs out everywhere, at most ten seconds for all, and forgets all connections.
    pub async fn close(&self) {
        let hosts = std::mem::take(&mut *self.lock()).hosts;
        let services = hosts.into_values().flat_map(|host| host.services);
        let log_outs = services.map(|service| async move { service.client.log_out().await });
        let all = futures::future::join_all(log_outs);
        if tokio::time::timeout(std::time::Duration::from_secs(10), all).await.is_err() {
            tracing::warn!("cannot close all Redfish sessions in time: some are left to expire");
        }
    }
}

impl Inner {
    fn len(&self) -> usize {
        self.hosts.values().map(|h| h.connections.len()).sum()
    }

    /// Forgets the connection unused for longest that nobody holds. Those in use stay, whatever their number.
    fn make_room(&mut self, max: usize) {
        if self.len() < max {
            return;
        }
        let all = self.hosts.values().flat_map(|h| &h.connections);
        let oldest = all.filter(|c| !c.is_used()).map(|c| c.used).min();
        let Some(oldest) = oldest else { return };
        self.forget(|c| c.used == oldest);
    }

    /// Forgets what nobody used for long.
    fn forget_idle(&mut self, now: Instant) {
        if self.looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        self.forget(|c| now.saturating_duration_since(c.at) >= IDLE);
    }

    /// Forgets these, but for those that somebody holds. A login goes with the last system that uses it.
    fn forget(&mut self, which: impl Fn(&BmcConnection) -> bool) {
        for host in self.hosts.values_mut() {
            host.connections.retain(|c| c.is_used() || !which(c));
            host.let_go();
        }
        self.hosts.retain(|_, host| !host.connections.is_empty() || !host.services.is_empty());
    }
}

impl BmcConnection {
    /// Whether somebody holds it.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.bmc) > 1
    }
}

/// Closes the sessions of clients that are not used any more: BMCs have few, and keep them for half an hour.
fn log_out(clients: Vec<Arc<redfish::RedfishClient>>) {
    // Nothing was sent where there is no runtime.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    for client in clients {
        runtime.spawn(async move { tokio::time::timeout(LOG_OUT, client.log_out()).await });
    }
}

impl HostConnections {
    /// Lets go of logins that nothing uses any more.
    fn let_go(&mut self) {
        let unused = self.services.extract_if(.., |service| Arc::strong_count(&service.client) == 1);
        log_out(unused.map(|service| service.client).collect());
    }

    fn open(
        &mut self,
        address: &BmcAddress,
        places: &[SocketAddr],
        credentials: &Credentials,
        verify: bool,
        (settings, tls): (&Arc<BmcSettings>, &redfish::Configs),
    ) -> Arc<dyn Bmc> {
        // An account whose password changed is not tried again with the old one.
        self.connections.retain(|c| {
            !(c.address == *address
                && c.credentials.username == credentials.username
                && !same(&c.credentials, credentials))
        });
        self.let_go();
        let (system, base) = match (&address.endpoint, address.base_url()) {
            (BmcEndpoint::Redfish { system, .. }, Some(base)) => (system.clone(), base),
            _ => return Arc::new(IpmiBmc::new(address, places, credentials, settings.clone(), self.lock.clone())),
        };
        let fits = |s: &&RedfishService| {
            let there = s.base == base && same_places(&s.places, places);
            there && s.verify == verify && same(&s.credentials, credentials)
        };
        if let Some(service) = self.services.iter().find(fits) {
            return Arc::new(RedfishBmc::new(service.client.clone(), system, settings.clone()));
        }
        let endpoint = redfish::ServiceEndpoint {
            base: base.clone(),
            peer: address.peer(),
            addresses: places.to_vec(),
            exchange: self.lock.clone(),
            has_sessions: self.has_sessions.clone(),
        };
        let certificates = tls.get(verify, &settings.extra_roots);
        let made = redfish::RedfishClient::new(endpoint, credentials, certificates, settings.clone());
        match made {
            Ok(client) => {
                let client = Arc::new(client);
                let (places, credentials) = (places.to_vec(), credentials.clone());
                let service = RedfishService { base, places, credentials, verify, client: client.clone() };
                self.services.push(service);
                Arc::new(RedfishBmc::new(client, system, settings.clone()))
            }
            Err(error) => Arc::new(Unusable(error.to_string())),
        }
    }
}

/// A connection that could not even be prepared; every use says why.
struct Unusable(String);

#[async_trait]
impl Bmc for Unusable {
    async fn power(&self) -> Result<PowerState, BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn set_power(&self, _: PowerAction) -> Result<(), BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn set_boot_device(&self, _: BootDevice, _: FirmwareMode) -> Result<(), BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn insert_media(&self, _: &str) -> Result<(), BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn eject_media(&self) -> Result<(), BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn media(&self) -> Result<Option<String>, BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn boot_from_url(&self, _: &str) -> Result<(), BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn inventory(&self) -> Result<crate::api::metal3::HardwareDetails, BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        Err(BmcError::Address(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        Credentials { username: "admin".into(), password: "secret".to_owned().into() }
    }

    #[test]
    fn a_lock_is_shared_by_who_names_the_same_places_alone() {
        let key = |address: &str, places: &[&str]| {
            let places: Vec<SocketAddr> = places.iter().map(|endpoint| endpoint.parse().expect("a place")).collect();
            BmcHostKey::of(&BmcAddress::parse(address).expect("an address"), &places)
        };
        let owners = key("ipmi://10.0.0.9", &["10.0.0.9:623"]);
        let rows = [
            ("ipmi://bmc.example", &["10.0.0.9:623"][..], true),
            ("ipmi://bmc.example", &["[::ffff:10.0.0.9]:623"], true),
            ("ipmi://bmc.example", &["10.0.0.9:623", "[2001:db8::1]:623"], false),
            ("ipmi://bmc.example:624", &["10.0.0.9:624"], false),
            ("redfish://bmc.example", &["10.0.0.9:623"], false),
        ];
        for (address, places, same) in rows {
            assert_eq!(key(address, places) == owners, same, "{address} {places:?}");
        }
        let both = ["10.0.0.9:443", "[2001:db8::1]:443"];
        let turned = [both[1], both[0]];
        assert!(key("redfish://bmc.example", &both) == key("redfish://bmc.example", &turned));
    }

    #[test]
    fn what_nobody_uses_for_an_hour_is_forgotten() {
        let registry = BmcRegistry::default();
        let address = |n: u8| BmcAddress::parse(&format!("redfish://192.0.2.{n}")).expect("an address");
        let held = registry.connect(&address(1), &credentials(), true);
        registry.connect(&address(2), &credentials(), true);
        let now = Instant::now();
        let look = |after: Duration| {
            let mut inner = registry.lock();
            inner.looked = None;
            inner.forget_idle(now + after);
            inner.len()
        };
        assert_eq!(look(IDLE - Duration::from_secs(60)), 2);
        assert_eq!(look(IDLE), 1);
        assert!(Arc::ptr_eq(&held, &registry.connect(&address(1), &credentials(), true)));
        drop(held);
        assert_eq!(look(IDLE * 2), 0);
        assert!(registry.lock().hosts.is_empty());
    }
}

//! Redfish: our client against our simulated service, with and without its faults; sushy-tools where it is installed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slipway::bmc::address::Privilege;
use slipway::bmc::sim::machine::{BootOverride, MachineStart, Override};
use slipway::bmc::sim::{
    Account, FaultScope, RedfishOptions, RedfishSim, SimulatedFault, SimulatedMachine as Machine, SimulatedProfile,
};
use slipway::bmc::{
    Bmc, BmcAddress, BmcError, BmcRegistry, BmcSettings, BootDevice, Credentials, FirmwareMode, Health, PowerAction,
    PowerState,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{needs, scraped};

struct Sim {
    machine: Arc<Machine>,
    service: Arc<RedfishSim>,
    port: u16,
    _stop: DropGuard,
}

async fn start(machines: Vec<Arc<Machine>>, options: RedfishOptions, tls: Option<TlsAcceptor>) -> Sim {
    let account = Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let token = CancellationToken::new();
    let service = RedfishSim::new(machines.clone(), account, options);
    tokio::spawn(service.clone().run(listener, tls, token.clone()));
    Sim { machine: machines[0].clone(), service, port, _stop: token.drop_guard() }
}

async fn sim_as(profile: SimulatedProfile, options: RedfishOptions) -> Sim {
    start(vec![Arc::new(Machine::new(profile))], options, None).await
}

async fn sim(options: RedfishOptions) -> Sim {
    sim_as(SimulatedProfile::default(), options).await
}

fn quick() -> BmcSettings {
    BmcSettings {
        http_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(2),
        http_backoff: Duration::from_millis(5),
        poll: Duration::from_millis(10),
        power_deadline: Duration::from_secs(5),
        soft_off_deadline: Duration::from_secs(5),
        boot_deadline: Duration::from_millis(200),
        ..BmcSettings::default()
    }
}

fn credentials(password: &str) -> Credentials {
    Credentials { username: "admin".into(), password: password.into() }
}

fn connect_with(port: u16, path: &str, password: &str, settings: BmcSettings) -> Arc<dyn Bmc> {
    let address = BmcAddress::parse(&format!("redfish+http://127.0.0.1:{port}{path}")).unwrap();
    BmcRegistry::new(settings).connect(&address, &credentials(password), true)
}

/// Requests that these settings' connections counted.
fn counted(settings: &BmcSettings, outcome: &str) -> f64 {
    let series = format!("slipway_bmc_requests_total{{protocol=\"redfish\",outcome=\"{outcome}\"}}");
    scraped::value(|registry| settings.metrics.register(registry), &series)
}

fn connect(sim: &Sim) -> Arc<dyn Bmc> {
    connect_with(sim.port, "", "secret", quick())
}

async fn walk(sim: &Sim, bmc: &dyn Bmc, name: &str) {
    let ok = |result: Result<(), BmcError>| result.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(bmc.power().await.unwrap(), PowerState::Off, "{name}");
    ok(bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await);
    ok(bmc.set_power(PowerAction::On).await);
    assert!(sim.machine.is_on(), "{name}");
    ok(bmc.set_power(PowerAction::On).await);
    ok(bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Uefi).await);
    ok(bmc.set_power(PowerAction::Reset).await);
    ok(bmc.set_power(PowerAction::SoftOff).await);
    assert!(!sim.machine.is_on(), "{name}");
    ok(bmc.set_power(PowerAction::ForceOff).await);
    ok(bmc.set_power(PowerAction::On).await);
    ok(bmc.set_power(PowerAction::ForceOff).await);
    let boots: Vec<_> = sim.machine.boots().iter().map(|b| b.device).collect();
    assert_eq!(boots[..2], [Some(BootDevice::Pxe), Some(BootDevice::Disk)], "{name}");
    assert!(sim.machine.boots()[0].uefi, "{name}");
}

#[tokio::test]
async fn power_and_boot_device_whatever_the_service_is_like() {
    let plain = RedfishOptions::default;
    let types = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let maker = |m: &str, model: &str| SimulatedProfile {
        manufacturer: m.into(),
        model: model.into(),
        ..SimulatedProfile::default()
    };
    for (name, profile, options) in [
        ("plain", SimulatedProfile::default(), plain()),
        (
            "slow power",
            SimulatedProfile { power_delay: Duration::from_millis(80), ..SimulatedProfile::default() },
            plain(),
        ),
        ("no sessions", SimulatedProfile::default(), RedfishOptions { sessions: false, ..plain() }),
        ("no If-Match", SimulatedProfile::default(), RedfishOptions { if_match: false, ..plain() }),
        ("weak ETags", SimulatedProfile::default(), RedfishOptions { weak_etags: true, ..plain() }),
        ("settings resource", SimulatedProfile::default(), RedfishOptions { settings_resource: true, ..plain() }),
        ("mode is read-only", SimulatedProfile::default(), RedfishOptions { mode_read_only: true, ..plain() }),
        (
            "other reset types",
            SimulatedProfile::default(),
            RedfishOptions { reset_types: types(&["ForceOn", "ForceOff", "PushPowerButton", "PowerCycle"]), ..plain() },
        ),
        ("forgets what is not sent", SimulatedProfile::default(), RedfishOptions { forgets_unsent: true, ..plain() }),
        ("Supermicro", maker("Supermicro", "X12"), RedfishOptions { forgets_unsent: true, ..plain() }),
        ("HPE", maker("HPE", "DL360"), RedfishOptions { mode_read_only: true, post_refusals: 2, ..plain() }),
        (
            "Lenovo",
            maker("Lenovo", "ThinkSystem SR675 V3 OVX"),
            RedfishOptions { reset_types: types(&["On", "ForceOff", "GracefulShutdown"]), ..plain() },
        ),
    ] {
        let sim = sim_as(profile, options).await;
        walk(&sim, &*connect(&sim), name).await;
    }
}

#[tokio::test]
async fn health_is_what_the_service_says() {
    let sim = sim(RedfishOptions::default()).await;
    let bmc = connect(&sim);
    for health in [Health::Unknown, Health::Ok, Health::Warning, Health::Critical] {
        sim.machine.set_health(health);
        assert_eq!(bmc.health().await.unwrap(), health);
    }
}

#[tokio::test]
async fn bios_mode_and_site_profiles() {
    let sim = sim_as(
        SimulatedProfile { manufacturer: "Odd".into(), ..SimulatedProfile::default() },
        RedfishOptions { no_once: true, ..RedfishOptions::default() },
    )
    .await;
    let bmc = connect(&sim);
    // "Once" that becomes "Continuous" is an error, for the machine would never leave the network again …
    let error = bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Bios).await.unwrap_err();
    assert!(matches!(&error, BmcError::NotApplied { found, .. } if found == "Pxe, Legacy, Continuous"), "{error}");
    // … unless a profile says that it is known; then the next device takes its place.
    let site = "[[profile]]\nname='odd'\nsource='seen on the bench'\n[profile.match]\nmanufacturer='odd'\n\
                [profile.redfish]\nboot_override_once_unsupported=true\n";
    let quirks = slipway::bmc::quirks::Quirks::with_site(site, "site.toml").unwrap().into();
    let bmc = connect_with(sim.port, "", "secret", BmcSettings { quirks, ..quick() });
    bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Bios).await.unwrap();
    bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Bios).await.unwrap();
    let want = BootOverride { enabled: Override::Continuous, device: Some(BootDevice::Disk), uefi: false };
    assert_eq!(sim.machine.boot(), want);
    bmc.set_power(PowerAction::On).await.unwrap();
    assert_eq!(sim.machine.boots(), [MachineStart { device: Some(BootDevice::Disk), uefi: false }]);
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_an_error() {
    let sim = sim(RedfishOptions::default()).await;
    sim.machine.inject(SimulatedFault::Ignore, FaultScope::Write, None);
    let bmc =
        connect_with(sim.port, "", "secret", BmcSettings { power_deadline: Duration::from_millis(100), ..quick() });
    let error = bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap_err();
    assert!(
        matches!(&error, BmcError::NotApplied { what, found, .. }
        if what == "boot device Pxe, UEFI, Once" && found == "None, UEFI, Disabled"),
        "{error}"
    );
    let error = bmc.set_power(PowerAction::On).await.unwrap_err();
    assert!(error.to_string().contains("accepted power on but still reports power off"), "{error}");

    let needs_off = RedfishOptions { boot_needs_power_off: true, ..RedfishOptions::default() };
    let sim =
        sim_as(SimulatedProfile { manufacturer: "Sushy Emulator".into(), ..SimulatedProfile::default() }, needs_off)
            .await;
    let bmc = connect(&sim);
    bmc.set_power(PowerAction::On).await.unwrap();
    let error = bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap_err();
    assert!(error.to_string().contains("only while the machine is off"), "{error}");
    bmc.set_power(PowerAction::ForceOff).await.unwrap();
    bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap();
}

#[tokio::test]
async fn systems_are_found_or_listed() {
    let machine =
        |name: &str| Arc::new(Machine::new(SimulatedProfile { name: name.into(), ..SimulatedProfile::default() }));
    let sim = start(vec![machine("left"), machine("right")], RedfishOptions::default(), None).await;
    let error = connect(&sim).power().await.unwrap_err();
    assert!(matches!(error, BmcError::Address(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("/redfish/v1/Systems/left, /redfish/v1/Systems/right") && text.contains("bmc.address"),
        "{text}"
    );
    let error = connect_with(sim.port, "/redfish/v1/Systems/middle", "secret", quick()).power().await.unwrap_err();
    assert!(
        error.to_string().contains("has no system /redfish/v1/Systems/middle; it has /redfish/v1/Systems/left"),
        "{error}"
    );

    // Two systems of one service: one login.
    let before = sim.service.sessions();
    let registry = BmcRegistry::new(quick());
    let connect = |name: &str| {
        let text = format!("redfish+http://127.0.0.1:{}/redfish/v1/Systems/{name}", sim.port);
        registry.connect(&BmcAddress::parse(&text).unwrap(), &credentials("secret"), true)
    };
    connect("right").set_power(PowerAction::On).await.unwrap();
    assert_eq!(connect("left").power().await.unwrap(), PowerState::Off);
    assert_eq!(sim.service.sessions(), before + 1);
    registry.close().await;
    assert_eq!(sim.service.sessions(), before);
}

#[tokio::test]
async fn a_login_that_is_let_go_is_closed() {
    let sim = sim(RedfishOptions::default()).await;
    let registry = BmcRegistry::new(BmcSettings { max_connections: 1, ..quick() });
    let address = BmcAddress::parse(&format!("redfish+http://127.0.0.1:{}", sim.port)).unwrap();
    let closed = async || {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        while sim.service.sessions() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sim.service.sessions() == 0
    };
    registry.connect(&address, &credentials("secret"), true).power().await.unwrap();
    assert_eq!(sim.service.sessions(), 1);
    // Another one needs its place.
    registry.connect(&BmcAddress::parse("redfish://192.0.2.1").unwrap(), &credentials("secret"), true);
    assert!(closed().await);
    // The account has another password.
    registry.connect(&address, &credentials("secret"), true).power().await.unwrap();
    assert_eq!(sim.service.sessions(), 1);
    registry.connect(&address, &credentials("other"), true);
    assert!(closed().await);
}

#[tokio::test]
async fn wrong_password_and_lost_sessions() {
    for sessions in [true, false] {
        let sim = sim(RedfishOptions { sessions, ..RedfishOptions::default() }).await;
        let settings = quick();
        let error = connect_with(sim.port, "", "wrong", settings.clone()).power().await.unwrap_err();
        assert!(matches!(error, BmcError::Credentials { .. }), "{error}");
        assert!(counted(&settings, "login-failed") > 0.0);
        assert!(error.to_string().contains("wrong user name or password for \"admin\""), "{error}");
        assert!(!error.to_string().contains("wrong\""), "{error}");
    }
    let sim = sim(RedfishOptions::default()).await;
    let settings = quick();
    let bmc = connect_with(sim.port, "", "secret", settings.clone());
    bmc.power().await.unwrap();
    sim.service.drop_sessions();
    assert_eq!(bmc.power().await.unwrap(), PowerState::Off);
    assert_eq!(sim.service.sessions(), 1);
    assert_eq!((counted(&settings, "session-ended"), counted(&settings, "login-failed")), (1.0, 0.0));
    let answers = scraped::value(
        |registry| settings.metrics.register(registry),
        "slipway_bmc_request_duration_seconds_count{protocol=\"redfish\"}",
    );
    assert_eq!(answers, counted(&settings, "ok") + 1.0, "all were answered");
    // The password changed meanwhile.
    sim.service.drop_sessions();
    sim.machine.inject(SimulatedFault::WrongPassword, FaultScope::All, None);
    assert!(matches!(bmc.power().await, Err(BmcError::Credentials { .. })));
}

#[tokio::test]
async fn faults_are_survived_or_named() {
    let sim = sim(RedfishOptions::default()).await;
    for (fault, scope) in [
        (SimulatedFault::Busy, FaultScope::All),
        (SimulatedFault::Reset, FaultScope::All),
        (SimulatedFault::Reset, FaultScope::Login),
        (SimulatedFault::Reset, FaultScope::Write),
        (SimulatedFault::Busy, FaultScope::Write),
        (SimulatedFault::Fail, FaultScope::Read),
        (SimulatedFault::Slow(Duration::from_millis(30)), FaultScope::All),
    ] {
        sim.machine.inject(fault.clone(), scope, Some(2));
        let found = connect(&sim).set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await;
        assert!(found.is_ok(), "{fault:?} {scope:?}: {found:?}");
        sim.machine.heal();
    }
    let short = || BmcSettings { http_timeout: Duration::from_millis(500), http_tries: 2, ..quick() };
    for (fault, scope, want, outcome) in [
        (SimulatedFault::Silence, FaultScope::All, "no answer within 500ms", "timeout"),
        (SimulatedFault::Reset, FaultScope::All, "connection closed", "unreachable"),
        (SimulatedFault::Garbage, FaultScope::Read, "not JSON", "invalid"),
        (SimulatedFault::Busy, FaultScope::Read, "HTTP 503 Service Unavailable: Try again.", "busy"),
        (SimulatedFault::Fail, FaultScope::Read, "internal service error", "refused"),
    ] {
        sim.machine.inject(fault.clone(), scope, None);
        let settings = short();
        let error = connect_with(sim.port, "", "secret", settings.clone()).power().await.unwrap_err();
        assert!(error.to_string().contains(want), "{fault:?}: {error}");
        assert!(counted(&settings, outcome) > 0.0, "{fault:?}");
        sim.machine.heal();
    }
    let types = vec!["On".to_string(), "ForceOff".to_string()];
    let sim = self::sim(RedfishOptions { reset_types: types, ..RedfishOptions::default() }).await;
    let bmc = connect(&sim);
    bmc.set_power(PowerAction::On).await.unwrap();
    let error = bmc.set_power(PowerAction::SoftOff).await.unwrap_err();
    assert!(matches!(&error, BmcError::Unsupported { what, .. } if what.contains("On, ForceOff")), "{error}");
}

#[tokio::test]
async fn unreachable_says_how() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = connect_with(free, "", "secret", quick()).power().await.unwrap_err();
    assert!(
        matches!(error, BmcError::Unreachable { .. }) && error.to_string().contains("connection refused"),
        "{error}"
    );
}

fn acceptor(names: &[&str]) -> (TlsAcceptor, rustls_pki_types::CertificateDer<'static>) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_der = ca.self_signed(&ca_key).unwrap().der().clone();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    let leaf = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca_der)
}

#[tokio::test]
async fn certificates_are_checked_unless_told_otherwise() {
    let machines = || vec![Arc::new(Machine::new(SimulatedProfile::default()))];
    let connect = |port: u16, roots: Vec<_>, verify: bool| {
        let address = BmcAddress::parse(&format!("redfish://127.0.0.1:{port}")).unwrap();
        let settings = BmcSettings { extra_roots: roots, ..quick() };
        BmcRegistry::new(settings).connect(&address, &credentials("secret"), verify)
    };
    let (tls, ca) = acceptor(&["127.0.0.1"]);
    let sim = start(machines(), RedfishOptions::default(), Some(tls)).await;
    let error = connect(sim.port, vec![], true).power().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BmcError::Unreachable { .. }), "{text}");
    assert!(text.contains("UnknownIssuer") && text.contains("disableCertificateVerification: true"), "{text}");
    connect(sim.port, vec![], false).power().await.unwrap();
    connect(sim.port, vec![ca], true).power().await.unwrap();

    let (tls, ca) = acceptor(&["bmc.example"]);
    let other = start(machines(), RedfishOptions::default(), Some(tls)).await;
    let text = connect(other.port, vec![ca], true).power().await.unwrap_err().to_string();
    assert!(text.contains("NotValidForName") && text.contains("names its address"), "{text}");

    // HTTPS towards a plain HTTP port.
    let plain = self::sim(RedfishOptions::default()).await;
    let text = connect(plain.port, vec![], false).power().await.unwrap_err().to_string();
    assert!(text.contains("redfish+http://"), "{text}");
}

#[tokio::test]
async fn redirects_stay_on_the_host_and_bodies_are_bounded() {
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};
    let server = MockServer::start().await;
    let root = serde_json::json!({"Systems": {"@odata.id": "/redfish/v1/Systems"}});
    let mount = |at: &'static str, answer: ResponseTemplate| {
        Mock::given(method("GET")).and(path(at)).respond_with(answer).mount(&server)
    };
    mount("/redfish/v1/", ResponseTemplate::new(200).set_body_json(root)).await;
    mount("/redfish/v1/Systems/away", ResponseTemplate::new(308).insert_header("location", "http://192.0.2.1/x")).await;
    mount("/redfish/v1/Systems/loop", ResponseTemplate::new(308).insert_header("location", "/redfish/v1/Systems/loop"))
        .await;
    mount(
        "/redfish/v1/Systems/slash",
        ResponseTemplate::new(308).insert_header("location", "/redfish/v1/Systems/slash/"),
    )
    .await;
    let on = serde_json::json!({"PowerState": "On"});
    mount("/redfish/v1/Systems/slash/", ResponseTemplate::new(200).set_body_json(on)).await;
    mount("/redfish/v1/Systems/huge", ResponseTemplate::new(200).set_body_bytes(vec![b' '; 1 << 20])).await;
    mount("/redfish/v1/Systems/odd", ResponseTemplate::new(200).set_body_json(serde_json::json!({"PowerState": 7})))
        .await;
    let port = server.address().port();
    let power = |name: &'static str| async move {
        connect_with(port, &format!("/redfish/v1/Systems/{name}"), "secret", quick())
            .power()
            .await
            .map_err(|e| e.to_string())
    };
    assert_eq!(power("slash").await, Ok(PowerState::On));
    for (name, want) in [
        ("away", "sends its callers to http://192.0.2.1,"),
        ("loop", "HTTP 308"),
        ("huge", "more than 262144 bytes"),
        ("odd", "without PowerState"),
    ] {
        let error = power(name).await.unwrap_err();
        assert!(error.contains(want), "{name}: {error}");
    }
}

/// A service that sends its callers elsewhere, wherever they can be sent.
async fn luring(what: &str, elsewhere: &str) -> wiremock::MockServer {
    use serde_json::json;
    use wiremock::matchers::{any, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};
    let server = MockServer::start().await;
    let token = || ResponseTemplate::new(201).insert_header("x-auth-token", "a-token");
    let sent_off = |status| ResponseTemplate::new(status).insert_header("location", elsewhere);
    let system = json!({
        "PowerState": "Off",
        "Actions": {"#ComputerSystem.Reset": {"target": format!("{elsewhere}reset")}},
        "Boot": {}, "@Redfish.Settings": {"SettingsObject": {"@odata.id": elsewhere}},
        "Links": {"ManagedBy": [{"@odata.id": elsewhere}]}, "VirtualMedia": {"@odata.id": elsewhere},
    });
    let systems = if what == "links" { json!(elsewhere) } else { json!("/redfish/v1/Systems") };
    let sessions = if what == "session link" { json!(elsewhere) } else { json!("/redfish/v1/Sessions") };
    let root = json!({"Systems": {"@odata.id": systems}, "Links": {"Sessions": {"@odata.id": sessions}}});
    let root = if what == "root" { sent_off(308) } else { ResponseTemplate::new(200).set_body_json(root) };
    let login = match what {
        "login 307" => sent_off(307),
        "login 302" => sent_off(302),
        "session" => token().insert_header("location", elsewhere),
        _ => token(),
    };
    let list = json!({"Members": [{"@odata.id": if what == "members" { elsewhere } else { "/redfish/v1/Systems/1" }}]});
    let one = if what == "system" { sent_off(307) } else { ResponseTemplate::new(200).set_body_json(system) };
    for (of, at, answer) in [
        ("GET", "/redfish/v1/", root),
        ("POST", "/redfish/v1/Sessions", login),
        ("GET", "/redfish/v1/Systems", ResponseTemplate::new(200).set_body_json(list)),
        ("GET", "/redfish/v1/Systems/1", one),
    ] {
        Mock::given(method(of)).and(path(at)).respond_with(answer).mount(&server).await;
    }
    // Everything else: what is written, above all.
    Mock::given(any()).respond_with(sent_off(307)).with_priority(9).mount(&server).await;
    server
}

#[tokio::test]
async fn a_bmc_sends_the_password_nowhere_else() {
    // Whoever listens there would be told user and password, or a session: even a connection is too much.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let settings = BmcSettings { http_timeout: Duration::from_millis(500), http_tries: 1, ..quick() };
    for what in
        ["root", "login 307", "login 302", "session", "session link", "links", "members", "system", "writes alone"]
    {
        for elsewhere in [
            format!("http://127.0.0.1:{port}/"),
            format!("https://127.0.0.1:{port}/"),
            format!("http://localhost:{port}/"),
            format!("//127.0.0.1:{port}/"),
            format!("http:127.0.0.1:{port}/"),
            format!("http://127.0.0.1@127.0.0.1:{port}/"),
            format!("@127.0.0.1:{port}/"),
            format!("/\\127.0.0.1:{port}/"),
        ] {
            let server = luring(what, &elsewhere).await;
            let address = format!("redfish+http://127.0.0.1:{}", server.address().port());
            let registry = BmcRegistry::new(settings.clone());
            let bmc = registry.connect(&BmcAddress::parse(&address).unwrap(), &credentials("secret"), true);
            let mut errors = vec![bmc.power().await.err(), bmc.set_power(PowerAction::On).await.err()];
            errors.push(bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.err());
            errors.push(bmc.insert_media("http://192.0.2.1/x.iso").await.err());
            errors.push(bmc.probe().await.err());
            registry.close().await;
            assert!(errors.iter().any(Option::is_some), "{what}, {elsewhere}: {errors:?}");
            let caller = listener.accept().map(|_| ()).map_err(|error| error.kind());
            assert_eq!(caller, Err(std::io::ErrorKind::WouldBlock), "{what}: it went to {elsewhere}");
        }
    }
    // Whoever wrote the wrong port, or http for https, is told what to write.
    for elsewhere in [format!("https://127.0.0.1:{port}/redfish/v1/"), format!("http://127.0.0.1:{port}")] {
        let server = luring("login 307", &elsewhere).await;
        let error = connect_with(server.address().port(), "", "secret", quick()).power().await.unwrap_err();
        let origin = elsewhere.split('/').take(3).collect::<Vec<_>>().join("/");
        let text = error.to_string();
        assert!(text.contains(&format!("sends its callers to {origin}")) && text.contains("bmc.address"), "{text}");
    }
}

/// `sushy-emulator --fake`, where it is installed; ended with the test.
struct Sushy(tokio::process::Child);

#[tokio::test]
async fn sushy_tools_is_driven_where_it_is_installed() {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), std::path::PathBuf::from);
    let cache = cache.join("slipway");
    let program = std::fs::read_dir(&cache)
        .into_iter()
        .flatten()
        .flatten()
        .map(|d| d.path().join("bin/sushy-emulator"))
        .find(|p| p.is_file());
    let Some(program) = program else {
        return needs::lacks(&format!("no sushy-emulator in a venv under {}", cache.display()));
    };
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = dir.path().join("sushy.conf");
    let text = "SUSHY_EMULATOR_FAKE_SYSTEMS = [{'uuid': '7d2c1bd6-4c1b-4b3c-9a3f-0e2d5f1c0a11', 'name': 'one', \
                'power_state': 'Off', 'nics': [{'mac': '52:54:00:12:34:56', 'ip': '192.0.2.2'}]}]\n";
    std::fs::write(&config, text).unwrap();
    let child = tokio::process::Command::new(&program)
        .args(["--fake", "-i", "127.0.0.1", "-p", &port.to_string(), "--config"])
        .arg(&config)
        .env("TMPDIR", dir.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut sushy = Sushy(child);
    let settings =
        BmcSettings { power_deadline: Duration::from_secs(20), boot_deadline: Duration::from_secs(10), ..quick() };
    let bmc = connect_with(port, "", "secret", settings);
    let begin = Instant::now();
    while let Err(error) = bmc.power().await {
        assert!(begin.elapsed() < Duration::from_secs(60), "sushy-emulator does not come up: {error}");
        assert!(sushy.0.try_wait().unwrap().is_none(), "sushy-emulator ended");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(bmc.power().await.unwrap(), PowerState::Off);
    bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap();
    bmc.set_power(PowerAction::On).await.unwrap();
    assert_eq!(bmc.power().await.unwrap(), PowerState::On);
    bmc.set_power(PowerAction::ForceOff).await.unwrap();
    bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Uefi).await.unwrap();
    sushy.0.kill().await.unwrap();
}

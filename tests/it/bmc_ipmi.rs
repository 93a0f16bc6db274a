//! IPMI: our client against our simulated BMC and against OpenIPMI's; our simulated BMC against ipmitool.

use std::net::UdpSocket as StdSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::IpmiBmc;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::machine::MachineStart;
use slipway::bmc::sim::{Account, FaultScope, IpmiSim, SimulatedFault, SimulatedMachine as Machine, SimulatedProfile};
use slipway::bmc::{
    Bmc, BmcAddress, BmcError, BmcRegistry, BmcSettings, BootDevice, Credentials, FirmwareMode, PowerAction, PowerState,
};
use tokio::net::UdpSocket;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{needs, scraped};

fn account(username: &str, password: &str, privilege: Privilege) -> Account {
    Account { username: username.into(), password: password.into(), privilege }
}

struct Sim {
    machine: Arc<Machine>,
    port: u16,
    _stop: DropGuard,
}

async fn sim_with(profile: SimulatedProfile, suites: &[CipherSuite], kg: Option<&[u8]>) -> Sim {
    let machine = Arc::new(Machine::new(profile));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let accounts = vec![
        account("admin", "secret", Privilege::Administrator),
        account("oper", "secret", Privilege::Operator),
        account("reader", "secret", Privilege::User),
    ];
    let mut bmc = IpmiSim::new(machine.clone(), accounts, suites);
    if let Some(kg) = kg {
        bmc = bmc.with_kg(kg);
    }
    let token = CancellationToken::new();
    tokio::spawn(bmc.run(socket, token.clone()));
    Sim { machine, port, _stop: token.drop_guard() }
}

async fn sim(suites: &[CipherSuite]) -> Sim {
    sim_with(SimulatedProfile::default(), suites, None).await
}

/// Short times, so that failures show quickly.
fn quick() -> BmcSettings {
    BmcSettings {
        ipmi_timeout: Duration::from_millis(400),
        ipmi_tries: 3,
        poll: Duration::from_millis(20),
        power_deadline: Duration::from_secs(5),
        soft_off_deadline: Duration::from_secs(5),
        boot_deadline: Duration::from_millis(300),
        ..BmcSettings::default()
    }
}

fn credentials(username: &str, password: &str) -> Credentials {
    Credentials { username: username.into(), password: password.into() }
}

fn connect(port: u16, query: &str, user: &str, password: &str, settings: BmcSettings) -> Arc<dyn Bmc> {
    let address = BmcAddress::parse(&format!("ipmi://127.0.0.1:{port}{query}")).unwrap();
    BmcRegistry::new(settings).connect(&address, &credentials(user, password), true)
}

/// Requests that these settings' connections counted.
fn counted(settings: &BmcSettings, outcome: &str) -> f64 {
    let series = format!("slipway_bmc_requests_total{{protocol=\"ipmi\",outcome=\"{outcome}\"}}");
    scraped::value(|registry| settings.metrics.register(registry), &series)
}

fn admin(sim: &Sim) -> Arc<dyn Bmc> {
    connect(sim.port, "", "admin", "secret", quick())
}

#[tokio::test]
async fn power_and_boot_device_with_each_suite() {
    for suites in [&[CipherSuite::Sha256][..], &[CipherSuite::Sha1], &CipherSuite::ALL] {
        let sim = sim_with(
            SimulatedProfile { power_delay: Duration::from_millis(60), ..SimulatedProfile::default() },
            suites,
            None,
        )
        .await;
        let bmc = admin(&sim);
        assert_eq!(bmc.power().await.unwrap(), PowerState::Off);
        bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap();
        bmc.set_power(PowerAction::On).await.unwrap();
        // What was asked is reported before the call returns.
        assert!(sim.machine.is_on());
        bmc.set_power(PowerAction::On).await.unwrap();
        bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Bios).await.unwrap();
        bmc.set_power(PowerAction::Reset).await.unwrap();
        bmc.set_power(PowerAction::SoftOff).await.unwrap();
        assert!(!sim.machine.is_on());
        bmc.set_power(PowerAction::ForceOff).await.unwrap();
        bmc.set_power(PowerAction::Reset).await.unwrap();
        assert_eq!(bmc.power().await.unwrap(), PowerState::On);
        bmc.set_power(PowerAction::ForceOff).await.unwrap();
        assert_eq!(bmc.power().await.unwrap(), PowerState::Off);
        let boot = |device, uefi| MachineStart { device, uefi };
        let want = [boot(Some(BootDevice::Pxe), true), boot(Some(BootDevice::Disk), false), boot(None, false)];
        assert_eq!(sim.machine.boots(), want, "{suites:?}");
    }
}

#[tokio::test]
async fn a_vendor_profile_changes_what_is_written() {
    let profile = SimulatedProfile { ipmi_manufacturer_id: 10876, ..SimulatedProfile::default() };
    let sim = sim_with(profile, &CipherSuite::ALL, None).await;
    let bmc = admin(&sim);
    bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Uefi).await.unwrap();
    assert_eq!(sim.machine.boot().device, Some(BootDevice::Disk));
}

#[tokio::test]
async fn a_bmc_that_is_silent_about_a_user_is_understood() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let accounts = vec![account("admin", "secret", Privilege::Administrator)];
    let machine = Arc::new(Machine::new(SimulatedProfile::default()));
    let token = CancellationToken::new();
    let bmc = IpmiSim::new(machine, accounts, &CipherSuite::ALL).silent_to_strangers();
    tokio::spawn(bmc.run(socket, token.clone()));
    let _stop = token.drop_guard();
    let error = connect(port, "", "nobody", "secret", quick()).power().await.unwrap_err();
    assert!(matches!(error, BmcError::Credentials { .. }), "{error}");
    assert!(error.to_string().contains("until user \"nobody\" was named"), "{error}");
    connect(port, "", "admin", "secret", quick()).power().await.unwrap();
}

async fn error(bmc: &dyn Bmc) -> String {
    bmc.power().await.unwrap_err().to_string()
}

#[tokio::test]
async fn wrong_credentials_are_told_apart() {
    let sim = sim(&CipherSuite::ALL).await;
    for (query, user, password, want) in [
        ("", "admin", "wrong", "wrong password for user \"admin\""),
        ("", "nobody", "secret", "user \"nobody\" is not known there"),
        ("", "reader", "secret", "user \"reader\" may not open a session as Administrator"),
        ("", "admin", "a password of 21 char", "at most 20 bytes"),
        ("", "a name of 17 chars", "secret", "at most 16 bytes"),
    ] {
        let bmc = connect(sim.port, query, user, password, quick());
        let error = bmc.power().await.unwrap_err();
        assert!(matches!(error, BmcError::Credentials { .. }), "{error}");
        assert!(error.to_string().contains(want), "{error}");
    }
    // A lower level reads, and is refused what it may not.
    let reader = connect(sim.port, "?privilegelevel=USER", "reader", "secret", quick());
    assert_eq!(reader.power().await.unwrap(), PowerState::Off);
    let error = reader.set_power(PowerAction::On).await.unwrap_err();
    assert!(matches!(error, BmcError::Credentials { .. }) && error.to_string().contains("may not power on"), "{error}");
    let operator = connect(sim.port, "?privilegelevel=OPERATOR", "oper", "secret", quick());
    operator.set_power(PowerAction::On).await.unwrap();
}

#[tokio::test]
async fn the_bmc_key_is_used_when_there_is_one() {
    let sim = sim_with(SimulatedProfile::default(), &CipherSuite::ALL, Some(b"rack key")).await;
    let with = |kg: Option<&str>| {
        let kg = kg.map(|k| k.to_string().into());
        connect(sim.port, "", "admin", "secret", BmcSettings { ipmi_kg: kg, ..quick() })
    };
    assert_eq!(with(Some("rack key")).power().await.unwrap(), PowerState::Off);
    for bmc in [with(None), with(Some("another"))] {
        let text = error(&*bmc).await;
        assert!(text.contains("K_G"), "{text}");
    }
}

#[tokio::test]
async fn a_bmc_that_is_not_there_says_how() {
    let free = StdSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = quick();
    let text = error(&*connect(free, "", "admin", "secret", settings.clone())).await;
    assert!(text.contains("nothing listens on UDP port"), "{text}");
    assert!(counted(&settings, "unreachable") > 0.0);
    // Somebody who takes packets and says nothing.
    let silent = StdSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = error(&*connect(port, "", "admin", "secret", quick())).await;
    assert!(text.contains("no answer to 3 requests"), "{text}");
}

#[tokio::test]
async fn faults_are_survived_or_named() {
    let sim = sim(&CipherSuite::ALL).await;
    // Passing ones are survived.
    for (fault, scope) in [
        (SimulatedFault::Silence, FaultScope::Login),
        (SimulatedFault::Garbage, FaultScope::Login),
        (SimulatedFault::Silence, FaultScope::Read),
        (SimulatedFault::Garbage, FaultScope::Read),
        (SimulatedFault::Busy, FaultScope::Read),
        (SimulatedFault::Slow(Duration::from_millis(50)), FaultScope::All),
        // Answers later than the try: the late ones must not be taken for later requests'.
        (SimulatedFault::Slow(Duration::from_millis(500)), FaultScope::Read),
    ] {
        sim.machine.inject(fault.clone(), scope, Some(1));
        let found = admin(&sim).power().await;
        assert_eq!(found.map_err(|e| e.to_string()), Ok(PowerState::Off), "{fault:?}");
        sim.machine.heal();
    }
    // Lasting ones are named.
    for (fault, scope, want, outcome) in [
        (SimulatedFault::Silence, FaultScope::All, "no answer to 3 requests", "timeout"),
        (SimulatedFault::Garbage, FaultScope::All, "packets, none of them usable", "invalid"),
        (SimulatedFault::Fail, FaultScope::Read, "completion code ffh", "refused"),
        (SimulatedFault::WrongPassword, FaultScope::Login, "wrong password", "login-failed"),
    ] {
        sim.machine.inject(fault.clone(), scope, None);
        let settings = quick();
        let text = error(&*connect(sim.port, "", "admin", "secret", settings.clone())).await;
        assert!(text.contains(want), "{fault:?}: {text}");
        assert!(counted(&settings, outcome) > 0.0, "{fault:?}");
        sim.machine.heal();
    }
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_an_error() {
    let sim = sim(&CipherSuite::ALL).await;
    sim.machine.inject(SimulatedFault::Ignore, FaultScope::Write, None);
    let bmc =
        connect(sim.port, "", "admin", "secret", BmcSettings { power_deadline: Duration::from_millis(200), ..quick() });
    let error = bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Uefi).await.unwrap_err();
    assert!(
        matches!(&error, BmcError::NotApplied { what, found, .. }
        if what == "boot device network, UEFI, once" && found.contains("no boot device") && found.contains("not valid")),
        "{error}"
    );
    let error = bmc.set_power(PowerAction::On).await.unwrap_err();
    assert!(matches!(&error, BmcError::NotApplied { found, .. } if found == "power off"), "{error}");
    assert!(error.to_string().contains("accepted power on but still reports power off"), "{error}");
    // An operating system that does not shut down.
    let sim =
        sim_with(SimulatedProfile { shutdown: None, ..SimulatedProfile::default() }, &CipherSuite::ALL, None).await;
    let settings = BmcSettings { soft_off_deadline: Duration::from_millis(200), ..quick() };
    let bmc = connect(sim.port, "", "admin", "secret", settings);
    bmc.set_power(PowerAction::On).await.unwrap();
    let error = bmc.set_power(PowerAction::SoftOff).await.unwrap_err();
    assert!(error.to_string().contains("accepted shut down but still reports power on"), "{error}");
}

#[tokio::test]
async fn many_at_once_on_one_bmc_all_succeed() {
    let sim = sim(&CipherSuite::ALL).await;
    let registry = Arc::new(BmcRegistry::new(BmcSettings { ipmi_timeout: Duration::from_secs(2), ..quick() }));
    let address = BmcAddress::parse(&format!("localhost:{}", sim.port)).unwrap();
    // More than the BMC has sessions; and a name instead of an address.
    let all = (0..40).map(|_| {
        let bmc = registry.connect(&address, &credentials("admin", "secret"), true);
        tokio::spawn(async move { bmc.power().await.map_err(|e| e.to_string()) })
    });
    for one in futures::future::join_all(all).await {
        assert_eq!(one.unwrap(), Ok(PowerState::Off));
    }
    assert_eq!(registry.len(), 1);
}

async fn ipmitool(port: u16, suite: u8, user: &str, password: &str, args: &str) -> (bool, String) {
    let mut command = tokio::process::Command::new("ipmitool");
    command.args(["-I", "lanplus", "-H", "127.0.0.1", "-N", "1", "-R", "2"]);
    command.args(["-C", &suite.to_string(), "-p", &port.to_string(), "-U", user, "-P", password]);
    command.args(args.split(' ')).stdin(Stdio::null()).kill_on_drop(true);
    let out = tokio::time::timeout(Duration::from_secs(30), command.output()).await.expect("ipmitool hangs").unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out.status.success(), text)
}

#[tokio::test]
async fn ipmitool_drives_the_simulated_bmc() {
    if !needs::program("ipmitool") {
        return;
    }
    let sim = sim_with(
        SimulatedProfile { ipmi_manufacturer_id: 4753, ipmi_product_id: 77, ..SimulatedProfile::default() },
        &CipherSuite::ALL,
        None,
    )
    .await;
    for suite in [17, 3] {
        for (args, want) in [
            ("chassis status", "System Power         : off"),
            ("mc info", "Manufacturer ID           : 4753"),
            ("chassis bootdev pxe options=efiboot", "Set Boot Device to pxe"),
            ("chassis bootparam get 5", "Boot Device Selector : Force PXE"),
            ("chassis bootparam get 5", "BIOS EFI boot"),
            ("chassis bootparam get 5", "Options apply to only next boot"),
            ("chassis power on", "Up/On"),
            ("chassis power status", "Chassis Power is on"),
            ("chassis bootparam get 5", "No override"),
            ("chassis power soft", "Soft"),
            ("chassis power status", "Chassis Power is off"),
            ("channel getciphers ipmi 1", "17"),
        ] {
            let (ok, text) = ipmitool(sim.port, suite, "admin", "secret", args).await;
            assert!(ok && text.contains(want), "-C {suite} {args}: {text}");
        }
        assert!(sim.machine.boots().last().is_some_and(|b| b.device == Some(BootDevice::Pxe) && b.uefi));
        for (user, password, want) in
            [("admin", "wrong", "RAKP 2 HMAC is invalid"), ("nobody", "secret", "unauthorized name")]
        {
            let (ok, text) = ipmitool(sim.port, suite, user, password, "-v chassis status").await;
            assert!(!ok && text.contains(want), "-C {suite} {user}: {text}");
        }
    }
}

/// OpenIPMI's simulator; ended with the test.
struct IpmiSimProcess {
    child: std::process::Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for IpmiSimProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl IpmiSimProcess {
    fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let port = StdSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = "#!/bin/sh\n\
            # Arguments: get <what> | set <what> <value> ...\n\
            dir=$(dirname \"$0\")\n\
            while [ $# -gt 0 ]; do\n\
            op=$1; what=$2; shift 2\n\
            case $op in\n\
            get) case $what in power) d=0;; *) d=none;; esac; echo \"$what:$(cat \"$dir/$what\" 2>/dev/null || echo $d)\";;\n\
            set) value=$1; shift; [ $what = shutdown ] && { what=power; value=0; }; [ $what = reset ] || echo \"$value\" >\"$dir/$what\";;\n\
            esac\ndone\n";
        std::fs::write(path("control"), script).unwrap();
        std::fs::set_permissions(path("control"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "name \"sim\"\nset_working_mc 0x20\nstartlan 1\naddr 127.0.0.1 {port}\npriv_limit admin\n\
             allowed_auths_admin none md2 md5 straight\nguid a123456789abcdefa123456789abcdef\nendlan\n\
             chassis_control \"{}\"\nuser 1 true \"\" \"\" user 10 none md2 md5 straight\n\
             user 2 true \"admin\" \"secret\" admin 10 none md2 md5 straight\n",
            path("control").display()
        );
        std::fs::write(path("lan.conf"), config).unwrap();
        let emulation =
            "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n";
        std::fs::write(path("sim.emu"), emulation).unwrap();
        std::fs::create_dir(path("state")).unwrap();
        let child = Command::new("ipmi_sim")
            .arg("-c")
            .arg(path("lan.conf"))
            .arg("-f")
            .arg(path("sim.emu"))
            .arg("-s")
            .arg(path("state"))
            .arg("-n")
            // It ends with its standard input, so that is kept open.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port, _dir: dir }
    }
}

#[tokio::test]
async fn our_client_drives_ipmi_sim_of_openipmi() {
    if !needs::program("ipmi_sim") {
        return;
    }
    let sim = IpmiSimProcess::start();
    let settings = || BmcSettings { ipmi_timeout: Duration::from_secs(1), ipmi_tries: 4, ..quick() };
    let bmc = connect(sim.port, "", "admin", "secret", settings());
    let start = Instant::now();
    let first = loop {
        match bmc.power().await {
            Ok(state) => break state,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "ipmi_sim does not come up: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(first, PowerState::Off);
    bmc.set_boot_device(BootDevice::Pxe, FirmwareMode::Bios).await.unwrap();
    bmc.set_power(PowerAction::On).await.unwrap();
    assert_eq!(bmc.power().await.unwrap(), PowerState::On);
    bmc.set_boot_device(BootDevice::Disk, FirmwareMode::Bios).await.unwrap();
    bmc.set_power(PowerAction::Reset).await.unwrap();
    bmc.set_power(PowerAction::SoftOff).await.unwrap();
    bmc.set_power(PowerAction::On).await.unwrap();
    bmc.set_power(PowerAction::ForceOff).await.unwrap();

    let address = BmcAddress::parse(&format!("127.0.0.1:{}", sim.port)).unwrap();
    let typed = IpmiBmc::new(&address, &[], &credentials("admin", "secret"), Arc::new(settings()), Arc::default());
    assert_eq!(typed.device_id().await.unwrap().manufacturer_id, 4753);

    // It does not hold a user to a level, so that is not asked of it.
    for (user, password) in [("admin", "wrong"), ("nobody", "secret")] {
        let found = connect(sim.port, "", user, password, settings()).power().await;
        assert!(matches!(found, Err(BmcError::Credentials { .. })), "{user}: {found:?}");
    }
}

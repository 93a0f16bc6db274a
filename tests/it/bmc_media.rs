//! Virtual media, boot from a URL, inventory and probe: our client against our simulated service and its faults.

use std::sync::Arc;
use std::time::Duration;

use slipway::bmc::address::Privilege;
use slipway::bmc::quirks::Quirks;
use slipway::bmc::sim::machine::{MachineStart, Override};
use slipway::bmc::sim::{
    Account, FaultScope, MediaFault, MediaStyle, RedfishOptions, RedfishSim, SimulatedFault,
    SimulatedMachine as Machine, SimulatedProfile,
};
use slipway::bmc::{
    Bmc, BmcAddress, BmcError, BmcRegistry, BmcSettings, BootDevice, Credentials, FirmwareMode, PowerAction,
};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

const URL: &str = "http://10.0.0.1/boot/iso/secret-ticket.iso";
const OTHER: &str = "http://10.0.0.1/other.iso";

struct Site {
    machine: Arc<Machine>,
    bmc: Arc<dyn Bmc>,
    _stop: DropGuard,
}

async fn site(options: RedfishOptions) -> Site {
    site_of(SimulatedProfile::default(), options, Arc::new(Quirks::parse("", "test").unwrap())).await
}

async fn site_of(profile: SimulatedProfile, options: RedfishOptions, quirks: Arc<Quirks>) -> Site {
    let account = Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("redfish+http://{}", listener.local_addr().unwrap());
    let token = CancellationToken::new();
    let machine = Arc::new(Machine::new(profile));
    tokio::spawn(RedfishSim::new(vec![machine.clone()], account, options).run(listener, None, token.clone()));
    let settings = BmcSettings {
        http_backoff: Duration::from_millis(5),
        poll: Duration::from_millis(10),
        boot_deadline: Duration::from_millis(200),
        media_deadline: Duration::from_millis(200),
        quirks: quirks.into(),
        ..BmcSettings::default()
    };
    let credentials = Credentials { username: "admin".into(), password: "secret".into() };
    let bmc = BmcRegistry::new(settings).connect(&BmcAddress::parse(&address).unwrap(), &credentials, true);
    Site { machine, bmc, _stop: token.drop_guard() }
}

fn quirk(key: &str) -> Arc<Quirks> {
    let text = format!("[[profile]]\nname='q'\nsource='test'\nmatch={{model='*'}}\nredfish={{{key}}}\n");
    Arc::new(Quirks::parse(&text, "test").unwrap())
}

#[tokio::test]
async fn a_cd_goes_in_and_out_in_every_style() {
    for media in [MediaStyle::System, MediaStyle::Manager, MediaStyle::ManagerPatch] {
        for media_fault in
            [MediaFault::None, MediaFault::ImageOnly, MediaFault::TransferRequired, MediaFault::FullRefuses]
        {
            if media == MediaStyle::ManagerPatch && media_fault == MediaFault::TransferRequired {
                continue;
            }
            let name = format!("{media:?} {media_fault:?}");
            let site = site(RedfishOptions { media, media_fault, ..RedfishOptions::default() }).await;
            assert_eq!(site.bmc.media().await.unwrap(), None, "{name}");
            site.bmc.eject_media().await.unwrap_or_else(|error| panic!("{name}: {error}"));
            // What is in the drive makes room.
            site.machine.set_media(Some(OTHER.into()));
            site.bmc.insert_media(URL).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(site.machine.media().as_deref(), Some(URL), "{name}");
            assert_eq!(site.bmc.media().await.unwrap().as_deref(), Some(URL), "{name}");
            site.bmc.insert_media(URL).await.unwrap_or_else(|error| panic!("{name}, again: {error}"));
            site.bmc.eject_media().await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(site.machine.media(), None, "{name}");
        }
    }
}

#[tokio::test]
async fn a_failed_insertion_does_not_count_whatever_the_drive_shows() {
    let site = site(RedfishOptions { media_fault: MediaFault::FailsAndShows, ..RedfishOptions::default() }).await;
    let error = site.bmc.insert_media(URL).await.unwrap_err();
    assert!(matches!(error, BmcError::Protocol { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("HTTP 500") && text.contains("insertion of a virtual CD"), "{text}");
    assert_eq!(site.machine.media(), None, "the machine must not boot from it");
}

#[tokio::test]
async fn a_drive_that_says_yes_and_does_nothing_is_told_of() {
    let forgets = RedfishOptions { media_fault: MediaFault::AcceptsAndForgets, ..RedfishOptions::default() };
    let site = site(forgets).await;
    let error = site.bmc.insert_media(URL).await.unwrap_err();
    assert!(matches!(&error, BmcError::NotApplied { found, .. } if found == "no medium"), "{error}");
    assert!(!error.to_string().contains("secret-ticket"), "{error}");
    // The same of the whole service, and of an ejection.
    let site = self::site(RedfishOptions::default()).await;
    site.machine.set_media(Some(URL.into()));
    site.machine.inject(SimulatedFault::Ignore, FaultScope::Write, None);
    let error = site.bmc.eject_media().await.unwrap_err();
    assert!(matches!(error, BmcError::NotApplied { .. }), "{error}");
    assert!(!error.to_string().contains("secret-ticket"), "{error}");
    let error = site.bmc.boot_from_url(URL).await.unwrap_err();
    assert!(matches!(error, BmcError::NotApplied { .. }), "{error}");
    assert!(!error.to_string().contains("secret-ticket"), "{error}");
}

#[tokio::test]
async fn a_service_without_a_drive_says_so() {
    let site = site(RedfishOptions { media: MediaStyle::None, uefi_http: false, ..RedfishOptions::default() }).await;
    for result in [site.bmc.insert_media(URL).await, site.bmc.eject_media().await] {
        let error = result.unwrap_err();
        assert!(matches!(error, BmcError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("no virtual drive for CDs"), "{error}");
    }
    for result in
        [site.bmc.boot_from_url(URL).await, site.bmc.set_boot_device(BootDevice::Cd, FirmwareMode::Uefi).await]
    {
        let error = result.unwrap_err();
        assert!(matches!(error, BmcError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("allows None, Pxe, Hdd"), "{error}");
    }
}

#[tokio::test]
async fn the_drive_of_another_system_is_left_alone() {
    let account = Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let token = CancellationToken::new();
    let _stop = token.clone().drop_guard();
    let named =
        |name: &str| Arc::new(Machine::new(SimulatedProfile { name: name.into(), ..SimulatedProfile::default() }));
    let machines = vec![named("first"), named("second")];
    let options = RedfishOptions { media: MediaStyle::Manager, ..RedfishOptions::default() };
    tokio::spawn(RedfishSim::new(machines.clone(), account, options).run(listener, None, token));
    machines[0].set_media(Some(OTHER.into()));
    let address = format!("redfish-virtualmedia+http://127.0.0.1:{port}/redfish/v1/Systems/second");
    let credentials = Credentials { username: "admin".into(), password: "secret".into() };
    let bmc = BmcRegistry::default().connect(&BmcAddress::parse(&address).unwrap(), &credentials, true);
    for result in [bmc.insert_media(URL).await, bmc.eject_media().await, bmc.media().await.map(drop)] {
        let error = result.unwrap_err();
        assert!(matches!(error, BmcError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("no virtual drive for CDs of this system alone"), "{error}");
    }
    assert_eq!(machines[0].media().as_deref(), Some(OTHER));
}

#[tokio::test]
async fn a_machine_boots_from_cd_or_url_once() {
    for cd_on_usb in [false, true] {
        for settings_resource in [false, true] {
            let options = RedfishOptions { cd_on_usb, settings_resource, ..RedfishOptions::default() };
            let site = site(options).await;
            site.bmc.insert_media(URL).await.unwrap();
            site.bmc.set_boot_device(BootDevice::Cd, FirmwareMode::Uefi).await.unwrap();
            site.bmc.set_power(PowerAction::On).await.unwrap();
            site.bmc.set_power(PowerAction::ForceOff).await.unwrap();
            assert_eq!(site.machine.boot().enabled, Override::Disabled);
            site.bmc.boot_from_url(URL).await.unwrap();
            assert_eq!(site.machine.http_uri().as_deref(), Some(URL));
            // Another URL with the same device is another boot.
            site.bmc.boot_from_url(OTHER).await.unwrap();
            assert_eq!(site.machine.http_uri().as_deref(), Some(OTHER));
            site.bmc.set_power(PowerAction::On).await.unwrap();
            let boots =
                [BootDevice::Cd, BootDevice::UefiHttp].map(|device| MachineStart { device: Some(device), uefi: true });
            assert_eq!(site.machine.boots(), boots);
        }
    }
}

#[tokio::test]
async fn profiles_change_the_writes() {
    let writes = async |key: &str, options: RedfishOptions| {
        let site = site_of(SimulatedProfile::default(), options, quirk(key)).await;
        let before = site.machine.requests();
        let result = site.bmc.insert_media(URL).await;
        (result.is_ok(), site.machine.requests() - before)
    };
    let strict = || RedfishOptions { media_fault: MediaFault::ImageOnly, ..RedfishOptions::default() };
    let (tried, more) = writes("no_if_match=false", strict()).await;
    let (known, fewer) = writes("media_image_only=true", strict()).await;
    assert!(tried && known && fewer < more, "{fewer} of {more}");
    let transfer = RedfishOptions { media_fault: MediaFault::TransferRequired, ..RedfishOptions::default() };
    assert!(writes("media_transfer_required=true", transfer.clone()).await.0);
    assert!(!writes("media_image_only=true", transfer).await.0, "the profile says that nothing else is worth a try");
}

#[tokio::test]
async fn the_hardware_is_read() {
    let site = site(RedfishOptions::default()).await;
    let hardware = site.bmc.inventory().await.unwrap();
    assert_eq!((hardware.ram_mebibytes, hardware.nics.len(), hardware.storage.len()), (16_384, 1, 1));
    let cpu = hardware.cpu.unwrap();
    assert_eq!((cpu.arch.as_str(), cpu.count), ("x86_64", 8));
    assert_eq!((hardware.storage[0].type_.as_str(), hardware.nics[0].speed_gbps), ("NVME", 10));
    site.machine.inject(SimulatedFault::Garbage, FaultScope::Read, None);
    assert!(site.bmc.inventory().await.is_err());
}

#[tokio::test]
async fn a_probe_says_what_it_is_and_changes_nothing() {
    let site = site_of(
        SimulatedProfile { manufacturer: "Supermicro".into(), ..SimulatedProfile::default() },
        RedfishOptions { media: MediaStyle::ManagerPatch, cd_on_usb: true, ..RedfishOptions::default() },
        Quirks::builtin(),
    )
    .await;
    let before = site.machine.generation();
    let report = site.bmc.probe().await.unwrap();
    assert_eq!(site.machine.generation(), before);
    assert_eq!(report.protocol, "Redfish 1.15.0");
    assert_eq!(report.profiles, ["supermicro (built in)"]);
    assert_eq!(report.schemes, ["redfish-virtualmedia", "redfish-uefihttp", "redfish"]);
    assert!(report.uefi_http && report.boot_devices.iter().any(|one| one == "UsbCd"));
    let drive = &report.virtual_media[0];
    assert_eq!(
        (drive.path.as_str(), drive.written_by.as_str(), drive.chosen),
        ("/redfish/v1/Managers/1/VirtualMedia/Cd", "patch", true)
    );
    let lines = report.lines();
    assert!(
        lines.contains(&("Power", "off".into())) && lines.contains(&("Quirk profiles", "supermicro (built in)".into())),
        "{lines:?}"
    );
}

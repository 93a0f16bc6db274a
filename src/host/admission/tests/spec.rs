//! What a spec may say.

use super::*;

#[tokio::test]
async fn every_rule_of_a_spec() {
    let rig = Rig::new().await;
    let soft = |volumes: Value| raid(json!({ "softwareRAIDVolumes": volumes }));
    let hard = |volumes: Value| raid(json!({ "hardwareRAIDVolumes": volumes }));
    let port = |port: Value| spec(json!({ "networkInterfaces": [port] }));
    let rows: Vec<(&str, Value, &str)> = vec![
        ("1.1 online is required", json!({}), "spec.online: Required value"),
        ("1.1 a host without anything", json!({"online": false}), OK),
        ("1.1 fields with their types", json!({"online": "yes"}), "spec.online: Invalid value"),
        (
            "1.1 bootMACAddress: six pairs",
            spec(json!({"bootMACAddress": "2:0:0:0:0:1"})),
            "spec.bootMACAddress: Invalid value: \"2:0:0:0:0:1\": ",
        ),
        ("1.1 bootMACAddress in capitals", spec(json!({"bootMACAddress": "AA:BB:CC:00:00:01"})), OK),
        (
            "1.1 bootMACAddress may be missing",
            json!({"online": true, "bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"}}),
            OK,
        ),
        (
            "1.1 libvirt needs bootMACAddress",
            json!({"online": true, "bmc": {"address": "libvirt://10.0.0.1", "credentialsName": "s"}}),
            "spec.bootMACAddress: Required value: libvirt:// needs it",
        ),
        (
            "1.1 no inspection needs bootMACAddress",
            json!({"online": true, "inspectionMode": "disabled", "bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"}}),
            "spec.bootMACAddress: Required value: without inspection",
        ),
        (
            "1.1 no inspection by Redfish: HardwareData may name the cards",
            json!({"online": true, "inspectionMode": "disabled", "bmc": {"address": "redfish://10.0.0.1", "credentialsName": "s"}}),
            OK,
        ),
        ("1.1 no inspection without a BMC", json!({"online": true, "inspectionMode": "disabled"}), OK),
        (
            "1.1 bootMode",
            spec(json!({"bootMode": "bios"})),
            "spec.bootMode: Unsupported value: \"bios\": supported values: ",
        ),
        ("1.1 bootMode legacy", spec(json!({"bootMode": "legacy"})), OK),
        (
            "1.1 Secure Boot",
            spec(json!({"bootMode": "UEFISecureBoot"})),
            "spec.bootMode: Unsupported value: \"UEFISecureBoot\": Secure Boot is not supported yet",
        ),
        (
            "1.1 Secure Boot of somebody else's system",
            spec(json!({"bootMode": "UEFISecureBoot", "externallyProvisioned": true})),
            OK,
        ),
        (
            "1.1 architecture",
            spec(json!({"architecture": "aarch64"})),
            "spec.architecture: Unsupported value: \"aarch64\": machines other than \"x86_64\" are not supported yet",
        ),
        (
            "1.1 customDeploy names its method",
            spec(json!({"customDeploy": {}})),
            "spec.customDeploy.method: Required value",
        ),
        (
            "1.1 customDeploy names its method",
            spec(json!({"customDeploy": {"method": ""}})),
            "spec.customDeploy.method: Required value",
        ),
        ("1.1 customDeploy without image", spec(json!({"customDeploy": {"method": "install_coreos"}})), OK),
        (
            "1.1 automatedCleaningMode",
            spec(json!({"automatedCleaningMode": "shred"})),
            "spec.automatedCleaningMode: Unsupported value",
        ),
        ("1.10 automatedCleaningMode", spec(json!({"automatedCleaningMode": "disabled"})), OK),
        (
            "1.1 disablePowerOff",
            spec(json!({"online": false, "disablePowerOff": true})),
            "spec.online: Invalid value: false: cannot be false while disablePowerOff is true",
        ),
        ("1.1 disablePowerOff", spec(json!({"disablePowerOff": true})), OK),
        ("1.1 inspectionMode", spec(json!({"inspectionMode": "thorough"})), "spec.inspectionMode: Unsupported value"),
        ("1.1 fast inspection over Redfish", spec(json!({"inspectionMode": "fast"})), OK),
        (
            "1.1 fast inspection over IPMI",
            spec(json!({"inspectionMode": "fast", "bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"}})),
            "spec.inspectionMode: Invalid value: \"fast\": needs Redfish, which ipmi:// is not",
        ),
        ("1.1 externallyProvisioned on creation", spec(json!({"externallyProvisioned": true})), OK),
        (
            "1.1 consumerRef, description, architecture",
            spec(json!({"description": "x", "architecture": "x86_64",
            "consumerRef": {"kind": "Metal3Machine", "name": "m", "namespace": "elsewhere"}})),
            OK,
        ),
        ("1.1 hardwareProfile is for the registration to judge", spec(json!({"hardwareProfile": "dell"})), OK),
        ("1.1 hardwareProfile is for the registration to judge", spec(json!({"hardwareProfile": "warp-drive"})), OK),
        ("1.1 taints are kept", spec(json!({"taints": [{"key": "a", "effect": "NoSchedule"}]})), OK),
        (
            "1.1 taints have a bound",
            spec(json!({"taints": vec![json!({"key": "a"}); 20_000]})),
            "spec.taints: Forbidden: more than 100 taints, or 1000 values in them, are not supported",
        ),
        (
            "1.1 the whole has a bound",
            spec(json!({"description": "a".repeat(70_000)})),
            "spec: Forbidden: more than 65536 bytes are not supported",
        ),
        (
            "1.1 firmware is refused",
            spec(json!({"firmware": {"sriovEnabled": true}})),
            "spec.firmware: Forbidden: firmware settings are not supported yet",
        ),
        (
            "1.1 userData elsewhere",
            spec(json!({"userData": {"name": "u", "namespace": "other"}})),
            "spec.userData.namespace: Forbidden: must be the host's own namespace",
        ),
        (
            "1.1 metaData elsewhere",
            spec(json!({"metaData": {"name": "u", "namespace": "other"}})),
            "spec.metaData.namespace: Forbidden",
        ),
        (
            "1.1 networkData elsewhere",
            spec(json!({"networkData": {"name": "u", "namespace": "other"}})),
            "spec.networkData.namespace: Forbidden",
        ),
        (
            "1.1 userData here",
            spec(json!({"userData": {"name": "u", "namespace": "rack"}, "metaData": {"name": "m", "namespace": ""}})),
            OK,
        ),
        (
            "1.1 a secret's name is a name",
            spec(json!({"userData": {"name": "../x"}})),
            "spec.userData.name: Invalid value: \"../x\": a lowercase RFC 1123",
        ),
        (
            "1.1 a secret's name is a name",
            spec(json!({"preprovisioningNetworkDataName": "a b"})),
            "spec.preprovisioningNetworkDataName: Invalid value",
        ),
        (
            "1.4 a secret's name is a name",
            spec(json!({"bmc": {"address": "redfish://10.0.0.1", "credentialsName": "s?watch=1"}})),
            "spec.bmc.credentialsName: Invalid value",
        ),
        (
            "1.4 a BMC without credentials is for the registration to judge",
            spec(json!({"bmc": {"address": "redfish://10.0.0.1"}})),
            OK,
        ),
        ("1.1 networkInterfaces: by name", port(json!({"name": "eth0"})), OK),
        ("1.1 networkInterfaces: by address", port(json!({"macAddress": "02:00:00:00:00:01"})), OK),
        (
            "1.1 networkInterfaces: an attachment",
            port(json!({"name": "eth0", "hostNetworkAttachment": {"name": "a", "namespace": "n"}})),
            "spec.networkInterfaces[0].hostNetworkAttachment: Forbidden: setting switch ports is not supported yet",
        ),
        (
            "1.1 networkInterfaces: a switch port",
            port(json!({"macAddress": "02:00:00:00:00:01",
            "switchPort": {"switchID": "02:00:00:00:00:02", "portID": "Ethernet1/1"}})),
            "spec.networkInterfaces[0].switchPort: Forbidden: setting switch ports is not supported yet",
        ),
        (
            "1.1 networkInterfaces: neither",
            port(json!({})),
            "spec.networkInterfaces[0]: Required value: give name or macAddress",
        ),
        (
            "1.1 networkInterfaces: both",
            port(json!({"name": "eth0", "macAddress": "02:00:00:00:00:01"})),
            "spec.networkInterfaces[0].macAddress: Forbidden: give name or macAddress, not both",
        ),
        (
            "1.1 networkInterfaces: name",
            port(json!({"name": "eth 0"})),
            "spec.networkInterfaces[0].name: Invalid value: \"eth 0\"",
        ),
        (
            "1.1 networkInterfaces: switchID",
            port(json!({"name": "eth0", "switchPort": {"switchID": "tor1", "portID": "1"}})),
            "spec.networkInterfaces[0].switchPort.switchID: Invalid value: \"tor1\"",
        ),
        (
            "1.6 deviceName",
            spec(json!({"rootDeviceHints": {"deviceName": "sda"}})),
            "spec.rootDeviceHints.deviceName: Invalid value: \"sda\": must be /dev/NAME or /dev/disk/by-path/NAME",
        ),
        (
            "1.6 deviceName",
            spec(json!({"rootDeviceHints": {"deviceName": "/dev/../sda"}})),
            "spec.rootDeviceHints.deviceName: Invalid value",
        ),
        (
            "1.6 deviceName",
            spec(json!({"rootDeviceHints": {"deviceName": "/dev/disk/by-id/wwn-0"}})),
            "spec.rootDeviceHints.deviceName: Invalid value",
        ),
        ("1.6 deviceName", spec(json!({"rootDeviceHints": {"deviceName": "/dev/nvme0n1"}})), OK),
        (
            "1.6 deviceName",
            spec(json!({"rootDeviceHints": {"deviceName": "/dev/disk/by-path/pci-0000:00:1f.2-ata-1"}})),
            OK,
        ),
        (
            "1.6 minSizeGigabytes",
            spec(json!({"rootDeviceHints": {"minSizeGigabytes": -1}})),
            "spec.rootDeviceHints.minSizeGigabytes: Invalid value: -1",
        ),
        (
            "1.6 all the others",
            spec(json!({"rootDeviceHints": {"hctl": "0:0:0:0", "model": "m", "vendor": "v", "serialNumber": "s",
            "wwn": "w", "wwnWithExtension": "x", "wwnVendorExtension": "y", "minSizeGigabytes": 0, "rotational": false}})),
            OK,
        ),
        ("1.7 url is required", image(json!({"checksum": SHA256})), "spec.image.url: Required value"),
        ("1.7 an empty url asks for nothing", image(json!({"url": ""})), OK),
        (
            "1.7 schemes",
            image(json!({"url": "file:///etc/passwd", "checksum": SHA256})),
            "spec.image.url: Invalid value: \"file:///etc/passwd\": must be a URL that begins with http:// or https:// and a host, or slipway://NAME with the name of an Image",
        ),
        ("1.7 schemes", image(json!({"url": "http://", "checksum": SHA256})), "spec.image.url: Invalid value"),
        ("1.7 schemes", image(json!({"url": "https://x/i", "checksum": SHA256})), OK),
        ("1.7 schemes", image(json!({"url": "ftp://x/i", "checksum": SHA256})), NO_URL),
        ("1.7 schemes", image(json!({"url": "gopher://x/i", "checksum": SHA256})), NO_URL),
        ("1.7 oci", image(json!({"url": "oci://x/i:1", "ociAuthSecretName": "login"})), NO_URL),
        (
            "1.7 what a URL hides is not repeated",
            image(json!({"url": "ftp://user:pw@x/i?signature=s", "checksum": SHA256})),
            "spec.image.url: Invalid value: \"ftp://x/i\": must be",
        ),
        (
            "1.7 what a URL hides is not repeated",
            image(json!({"url": "http://x/i", "checksum": "ftp://user:pw@x/i?signature=s"})),
            "spec.image.checksum: Invalid value: \"ftp://x/i\": the URL",
        ),
        (
            "1.7 ociAuthSecretName is kept, as in Metal3, and docs/host-life.md says that it has no effect",
            image(json!({"url": "https://x/i", "checksum": SHA256, "ociAuthSecretName": "login"})),
            OK,
        ),
        (
            "1.7 ociAuthSecretName",
            image(json!({"url": "https://x/i", "checksum": SHA256, "ociAuthSecretName": "a/b"})),
            "spec.image.ociAuthSecretName: Invalid value",
        ),
        (
            "1.7 checksum is required",
            image(json!({"url": "http://x/i"})),
            "spec.image.checksum: Required value: give the checksum, or the URL of a file of checksums",
        ),
        ("1.7 checksum: not for live-iso", image(json!({"url": "http://x/i.iso", "format": "live-iso"})), OK),
        (
            "1.7 checksum: hex digits",
            image(json!({"url": "http://x/i", "checksum": "abc"})),
            "spec.image.checksum: Invalid value: \"abc\": must have 32, 64, 128 hex digits, or be the URL of a file of checksums",
        ),
        (
            "1.7 checksum: hex digits",
            image(json!({"url": "http://x/i", "checksum": "z".repeat(64)})),
            "spec.image.checksum: Invalid value",
        ),
        (
            "1.7 checksum fits its type",
            image(json!({"url": "http://x/i", "checksum": SHA256, "checksumType": "md5"})),
            "spec.image.checksum: Invalid value: \"aaaa",
        ),
        (
            "1.7 checksum fits its type",
            image(json!({"url": "http://x/i", "checksum": SHA256, "checksumType": "sha256"})),
            OK,
        ),
        (
            "1.7 checksum fits its type",
            image(json!({"url": "http://x/i", "checksum": SHA256.repeat(2), "checksumType": "auto"})),
            OK,
        ),
        (
            "1.7 checksumType",
            image(json!({"url": "http://x/i", "checksum": SHA256, "checksumType": "crc32"})),
            "spec.image.checksumType: Unsupported value",
        ),
        (
            "1.7 checksum as URL",
            image(json!({"url": "http://x/i", "checksum": "https://x/SHA256SUMS", "checksumType": "sha256"})),
            OK,
        ),
        (
            "1.7 checksum as URL",
            image(json!({"url": "http://x/i", "checksum": "file:///etc/shadow"})),
            "spec.image.checksum: Invalid value: \"file:///etc/shadow\": the URL of a file of checksums begins with http:// or https://",
        ),
        (
            "1.7 format",
            image(json!({"url": "http://x/i", "checksum": SHA256, "format": "vhd"})),
            "spec.image.format: Unsupported value: \"vhd\": supported values: \"raw\", \"qcow2\", \"live-iso\"",
        ),
        (
            "1.7 format",
            image(json!({"url": "http://x/i", "checksum": SHA256, "format": "vmdk"})),
            "spec.image.format: Unsupported value: \"vmdk\": supported values: \"raw\", \"qcow2\", \"live-iso\" (qemu-img convert",
        ),
        (
            "10 k an empty format counts as none",
            image(json!({"url": "http://x/i", "checksum": SHA256, "format": ""})),
            OK,
        ),
        (
            "1.9 an empty list needs none",
            spec(
                json!({"bmc": {"address": "ipmi://10.0.0.1", "credentialsName": "s"}, "raid": {"hardwareRAIDVolumes": [], "softwareRAIDVolumes": null}}),
            ),
            OK,
        ),
        (
            "1.9 hardware: all fields",
            hard(json!([{"level": "5+0", "sizeGibibytes": 0, "name": "root", "rotational": true,
            "numberOfPhysicalDisks": 2, "controller": "c", "physicalDisks": ["a", "b"]}])),
            "spec.raid.hardwareRAIDVolumes: Forbidden: building RAID volumes is not supported yet",
        ),
        (
            "1.9 hardware: level is required",
            hard(json!([{}])),
            "spec.raid.hardwareRAIDVolumes[0].level: Required value",
        ),
        (
            "1.9 hardware: level",
            hard(json!([{"level": "3"}])),
            "spec.raid.hardwareRAIDVolumes[0].level: Unsupported value: \"3\"",
        ),
        (
            "1.9 hardware: size",
            hard(json!([{"level": "1", "sizeGibibytes": -1}])),
            "spec.raid.hardwareRAIDVolumes[0].sizeGibibytes: Invalid value",
        ),
        (
            "1.9 hardware: name",
            hard(json!([{"level": "1", "name": "n".repeat(65)}])),
            "spec.raid.hardwareRAIDVolumes[0].name: Too long",
        ),
        (
            "1.9 hardware: number of disks",
            hard(json!([{"level": "1", "numberOfPhysicalDisks": 0}])),
            "spec.raid.hardwareRAIDVolumes[0].numberOfPhysicalDisks: Invalid value: 0",
        ),
        (
            "1.9 software: two volumes",
            soft(json!([{"level": "1", "rootVolume": true}, {"level": "1+0", "sizeGibibytes": 10,
            "physicalDisks": [{"minSizeGigabytes": 1}, {"wwn": "w"}]}])),
            "spec.raid.softwareRAIDVolumes: Forbidden: building RAID volumes is not supported yet",
        ),
        (
            "1.9 software: at most two",
            soft(json!([{"level": "1"}, {"level": "1"}, {"level": "1"}])),
            "spec.raid.softwareRAIDVolumes: Too many: 3: must have at most 2 items",
        ),
        (
            "1.9 software: level",
            soft(json!([{"level": "5"}])),
            "spec.raid.softwareRAIDVolumes[0].level: Unsupported value: \"5\"",
        ),
        (
            "1.9 software: two disks at least",
            soft(json!([{"level": "1", "physicalDisks": [{"wwn": "w"}]}])),
            "spec.raid.softwareRAIDVolumes[0].physicalDisks: Invalid value",
        ),
    ];
    for (rule, spec, want) in &rows {
        judge(&rig, rule, &host("h", spec.clone()), want).await;
    }
}

#[tokio::test]
async fn every_scheme_of_a_bmc() {
    let rig = Rig::new().await;
    let removed = |instead: &str| format!("was removed: write {instead}");
    let rows: Vec<(&str, String)> = vec![
        ("ipmi://10.0.0.1", OK.into()),
        ("ipmi://10.0.0.1:6230?privilegelevel=OPERATOR", OK.into()),
        ("ipmi:10.0.0.1:6230", OK.into()),
        ("10.0.0.1", OK.into()),
        ("bmc1.example.com:623", OK.into()),
        ("libvirt://10.0.0.1:6230", OK.into()),
        ("redfish://10.0.0.1/redfish/v1/Systems/1", OK.into()),
        ("redfish+http://[2001:db8::1]:8000/redfish/v1/Systems/1", OK.into()),
        ("ilo5-redfish://10.0.0.1", OK.into()),
        ("idrac-redfish+https://10.0.0.1/redfish/v1/Systems/System.Embedded.1", OK.into()),
        ("redfish-virtualmedia://10.0.0.1", OK.into()),
        ("ilo5-virtualmedia://10.0.0.1", OK.into()),
        ("idrac-virtualmedia://10.0.0.1", OK.into()),
        ("redfish-uefihttp://10.0.0.1", OK.into()),
        ("ilo4://10.0.0.1", removed("ipmi://")),
        ("ilo4-virtualmedia://10.0.0.1", removed("ipmi://")),
        ("ilo5://10.0.0.1", removed("ilo5-redfish://")),
        ("irmc://10.0.0.1", removed("redfish:// or ipmi://")),
        ("ibmc://10.0.0.1", removed("redfish://")),
        ("idrac://10.0.0.1", removed("idrac-redfish://")),
        ("idrac+http://10.0.0.1", removed("idrac-redfish://")),
        ("carrier-pigeon://x", "unknown BMC scheme \"carrier-pigeon\": write one of idrac-redfish, ".into()),
        ("ipmi+https://10.0.0.1", "does not take the transport \"https\"".into()),
        ("redfish://2001:db8::1/redfish/v1", "an IPv6 address needs brackets".into()),
        ("redfish://Bad_Host/", "is neither an IP address nor a DNS name".into()),
        ("redfish://10.0.0.1:99999", "is not a port (1 to 65535)".into()),
        ("redfish://admin:secret@10.0.0.1", "put user and password into the Secret".into()),
        ("redfish://", "names no host".into()),
        ("ipmi://10.0.0.1?privilegelevel=GOD", "write USER, OPERATOR or ADMINISTRATOR".into()),
    ];
    for (address, want) in rows {
        let outcome = rig.create(&host("h", bmc(address))).await;
        match (want.as_str(), outcome) {
            (OK, Ok(_)) => assert_eq!(rig.call("DELETE", &format!("{HOSTS}/h"), &json!({})).await.0, 200),
            (want, Err(fault)) if want != OK => {
                let start = format!("spec.bmc.address: Invalid value: {}: ", json!(crate::outbound::masked(address)));
                assert!(!fault.contains("secret"), "{fault}");
                assert!(fault.starts_with(&start) && fault.contains(want), "{fault}");
            }
            (_, outcome) => panic!("{address}: {outcome:?}"),
        }
    }
}

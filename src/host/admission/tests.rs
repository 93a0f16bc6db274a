//! Each rule of the reference as a client meets it: through the API, with the answer's causes.

use axum::body::Body;
use axum::extract::Extension;
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::apiserver::{ApiServer, Identity};
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

const HOSTS: &str = "/apis/metal3.io/v1alpha1/namespaces/rack/baremetalhosts";
const SHA256: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

struct Rig {
    router: axum::Router,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), CancellationToken::new()).await.unwrap();
        api.add_admission("metal3.io/baremetalhosts", std::sync::Arc::new(admit));
        let router = api.router().layer(Extension(Identity::in_process()));
        let rig = Self { router, _folder: folder };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rack"}});
        assert_eq!(rig.call("POST", "/api/v1/namespaces", &namespace).await.0, 201);
        rig
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// A new host.
    async fn create(&self, host: &Value) -> Result<Value, String> {
        let (code, answer) = self.call("POST", HOSTS, host).await;
        self.outcome(code, answer)
    }

    /// A host that has been where its status says, changed.
    async fn change(&self, from: &Value, status: &Value, to: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let mut host = self.create(from).await.unwrap_or_else(|fault| panic!("{from}: {fault}"));
        let path = format!("{HOSTS}/{}", host["metadata"]["name"].as_str().unwrap());
        host["status"] = status.clone();
        let (code, mut host) = self.call("PUT", &format!("{path}/status"), &host).await;
        assert_eq!(code, 200, "{host}");
        to(&mut host);
        let (code, answer) = self.call("PUT", &path, &host).await;
        let outcome = self.outcome(code, answer);
        assert_eq!(self.call("DELETE", &path, &json!({})).await.0, 200);
        outcome
    }

    /// The object, or `field: message` of the only cause.
    fn outcome(&self, code: u16, answer: Value) -> Result<Value, String> {
        if code < 300 {
            return Ok(answer);
        }
        assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")), "{answer}");
        let causes = answer["details"]["causes"].as_array().unwrap();
        let told: Vec<_> = causes.iter().map(|c| format!("{}: {}", text(&c["field"]), text(&c["message"]))).collect();
        assert!(told.iter().all(|cause| text(&answer["message"]).contains(cause)), "{answer}");
        Err(told.join("; "))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn host(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name}, "spec": spec})
}

/// A spec that is fine, with these fields over it.
fn spec(over: Value) -> Value {
    let mut spec = json!({"online": true, "bootMACAddress": "02:00:00:00:00:01",
        "bmc": {"address": "redfish://10.0.0.1", "credentialsName": "s"}});
    for (key, value) in over.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn image(image: Value) -> Value {
    spec(json!({ "image": image }))
}

fn raid(raid: Value) -> Value {
    spec(json!({ "raid": raid }))
}

fn bmc(address: &str) -> Value {
    spec(json!({"bmc": {"address": address, "credentialsName": "s"}}))
}

/// What must be accepted.
const OK: &str = "";
const NO_URL: &str = "spec.image.url: Invalid value: ";

async fn judge(rig: &Rig, rule: &str, object: &Value, want: &str) {
    let outcome = rig.create(object).await;
    match (want, outcome) {
        (OK, Ok(made)) => {
            let path = format!("{HOSTS}/{}", text(&made["metadata"]["name"]));
            assert_eq!(rig.call("DELETE", &path, &json!({})).await.0, 200);
        }
        (OK, Err(fault)) => panic!("{rule}: {object} was refused: {fault}"),
        (want, Ok(_)) => panic!("{rule}: {object} was accepted, want {want}"),
        (want, Err(fault)) => assert!(fault.starts_with(want) && !fault.contains("; "), "{rule}: {object}: {fault}"),
    }
}

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

#[tokio::test]
async fn every_rule_of_names_and_annotations() {
    let rig = Rig::new().await;
    for (rule, name, want) in [
        ("1.1 a name", "rack-1.host", OK),
        ("1.1 a name with other letters", "host/1", "metadata.name: Invalid value"),
        (
            "1.1 a name as Kubernetes has them",
            "Host_1",
            "metadata.name: Invalid value: \"Host_1\": a lowercase RFC 1123 subdomain",
        ),
        (
            "1.1 a UUID",
            "3f3a0b3e-7a8e-4a4e-9f3e-0f6d3f1c2b1a",
            "metadata.name: Invalid value: \"3f3a0b3e-7a8e-4a4e-9f3e-0f6d3f1c2b1a\": a host's name must not be a UUID",
        ),
        ("1.1 a UUID without its hyphens", "3f3a0b3e7a8e4a4e9f3e0f6d3f1c2b1a", "metadata.name: Invalid value"),
    ] {
        judge(&rig, rule, &host(name, spec(json!({}))), want).await;
    }
    let (agent, disabled) = (json!({}), json!({"inspectionMode": "disabled"}));
    let told = json!({"inspectionMode": "agent"});
    let status = "baremetalhost.metal3.io/status";
    let details = "inspect.metal3.io/hardwaredetails";
    let moved = json!({"operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "poweredOn": true, "errorType": "",
        "provisioning": {"state": "provisioned", "ID": "x", "image": {"url": "http://x/i"}}, "hardware": {"nics": [{"mac": "02:00:00:00:00:01"}]},
        "operationHistory": {"register": {"start": "2024-01-01T00:00:00Z", "end": null}}, "goodCredentials": {}, "triedCredentials": {}})
    .to_string();
    let rows: Vec<(&str, &str, &str, &Value, &str)> = vec![
        ("1.3 paused holds anything", "baremetalhost.metal3.io/paused", "metal3.io/capm3", &agent, OK),
        ("1.3 detached holds anything", "baremetalhost.metal3.io/detached", "{\"deleteAction\":", &agent, OK),
        ("1.3 reboot", "reboot.metal3.io", "", &agent, OK),
        ("1.3 reboot", "reboot.metal3.io", "{\"mode\":\"hard\",\"force\":true}", &agent, OK),
        ("1.3 reboot with a holder", "reboot.metal3.io/capm3", "{\"mode\":\"soft\"}", &agent, OK),
        (
            "1.3 reboot: JSON",
            "reboot.metal3.io",
            "hard",
            &agent,
            "metadata.annotations[reboot.metal3.io]: Invalid value: \"hard\": must be empty, or JSON like {\"mode\":\"hard\"}",
        ),
        (
            "1.3 reboot: JSON",
            "reboot.metal3.io/me",
            "{\"force\":\"yes\"}",
            &agent,
            "metadata.annotations[reboot.metal3.io/me]: Invalid value",
        ),
        (
            "1.3 reboot: mode",
            "reboot.metal3.io/me",
            "{\"mode\":\"medium\"}",
            &agent,
            "metadata.annotations[reboot.metal3.io/me]: Unsupported value: \"medium\": supported values of mode: \"\", \"hard\", \"soft\"",
        ),
        ("1.3 something else", "reboot.metal3.iota", "hard", &agent, OK),
        ("1.3 unhealthy holds anything", "capm3.metal3.io/unhealthy", "{", &agent, OK),
        ("1.3 unhealthy holds anything", "capi.metal3.io/unhealthy", "", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "disabled", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "disabled", &disabled, OK),
        (
            "1.3 inspect",
            "inspect.metal3.io",
            "twice",
            &agent,
            "metadata.annotations[inspect.metal3.io]: Unsupported value: \"twice\": supported values: \"\", \"disabled\"",
        ),
        (
            "1.3 inspect against inspectionMode",
            "inspect.metal3.io",
            "disabled",
            &told,
            "metadata.annotations[inspect.metal3.io]: Forbidden: contradicts spec.inspectionMode",
        ),
        ("1.3 status", status, "", &agent, OK),
        ("1.3 status", status, &moved, &agent, OK),
        (
            "1.3 status: no JSON",
            status,
            "provisioned",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: is not JSON",
        ),
        (
            "1.3 status: strict",
            status,
            "{\"provisioning\":{\"state\":\"available\",\"ID\":\"\",\"colour\":\"red\"}}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: has an unknown field \"provisioning.colour\"",
        ),
        (
            "1.3 status: operationalStatus",
            status,
            "{\"operationalStatus\":\"fine\"}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: cannot be read: unknown variant `fine`",
        ),
        (
            "status: a time that cannot be written",
            status,
            "{\"operationHistory\":{\"register\":{\"start\":\"-009999-01-02T01:59:59Z\"}}}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: has a value that an object cannot hold",
        ),
        (
            "1.3 status: errorType",
            status,
            "{\"errorType\":\"fatal\"}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value",
        ),
        (
            "10 a whatever Slipway itself may have written",
            status,
            "{\"operationalStatus\":\"servicing\",\"errorType\":\"detach error\"}",
            &agent,
            OK,
        ),
        ("1.3 hardwaredetails", details, "{\"cpu\":{\"arch\":\"x86_64\"},\"ramMebibytes\":1024}", &disabled, OK),
        ("1.3 hardwaredetails", details, "", &agent, OK),
        (
            "1.3 hardwaredetails: strict",
            details,
            "{\"ram\":1024}",
            &disabled,
            "metadata.annotations[inspect.metal3.io/hardwaredetails]: Invalid value: has an unknown field \"ram\"",
        ),
        (
            "1.3 hardwaredetails need inspection disabled",
            details,
            "{}",
            &agent,
            "metadata.annotations[inspect.metal3.io/hardwaredetails]: Forbidden: hardware can be given only with inspection disabled",
        ),
    ];
    for (rule, key, value, over, want) in rows {
        let mut object = host("h", spec(over.clone()));
        object["metadata"]["annotations"] = json!({ key: value });
        judge(&rig, rule, &object, want).await;
    }
    let mut both = host("h", spec(json!({})));
    both["metadata"]["annotations"] = json!({ details: "{}", "inspect.metal3.io": "disabled" });
    judge(&rig, "1.3 hardwaredetails with the old annotation", &both, OK).await;
}

#[tokio::test]
async fn what_may_change_depends_on_the_state() {
    let rig = Rig::new().await;
    let state = |state: &str| json!({"operationalStatus": "OK", "provisioning": {"state": state, "ID": ""}});
    let detached = json!({"operationalStatus": "detached", "provisioning": {"state": "provisioned", "ID": ""}});
    let address = |host: &mut Value| host["spec"]["bmc"]["address"] = json!("redfish://10.0.0.2");
    let refused = "spec.bmc.address: Forbidden: can be changed only while the host is registering or detached";
    for (status, want) in [
        (state(""), OK),
        (state("registering"), OK),
        (detached, OK),
        (state("inspecting"), refused),
        (state("preparing"), refused),
        (state("available"), refused),
        (state("provisioned"), refused),
        (state("externally provisioned"), refused),
        (state("deprovisioning"), refused),
    ] {
        let outcome = rig.change(&host("h", spec(json!({}))), &status, address).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 bmc.address in {status}");
    }
    let first = |host: &mut Value| {
        host["spec"]["bmc"] = json!({"address": "redfish://10.0.0.2", "credentialsName": "s"});
    };
    let outcome = rig.change(&host("h", json!({"online": true})), &state("unmanaged"), first).await;
    assert!(outcome.is_ok(), "1.1 the first bmc.address: {outcome:?}");

    let mac = "spec.bootMACAddress: Forbidden: cannot be changed once set";
    let set = |mac: Value| move |host: &mut Value| host["spec"]["bootMACAddress"] = mac;
    for (to, want) in [(json!("02:00:00:00:00:02"), mac), (json!(null), mac), (json!("02:00:00:00:00:01"), OK)] {
        let outcome = rig.change(&host("h", spec(json!({}))), &state("registering"), set(to.clone())).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 bootMACAddress to {to}");
    }
    let letters = host("h", spec(json!({"bootMACAddress": "aa:bb:cc:00:00:01"})));
    assert!(rig.change(&letters, &state("available"), set(json!("AA:BB:CC:00:00:01"))).await.is_ok());
    let without = host("h", json!({"online": true}));
    assert!(rig.change(&without, &state("available"), set(json!("02:00:00:00:00:01"))).await.is_ok());

    let adopt = |host: &mut Value| host["spec"]["externallyProvisioned"] = json!(true);
    let refused = "spec.externallyProvisioned: Forbidden: can become true only on creation, or while the host is unmanaged or available";
    for (status, want) in [
        ("available", OK),
        ("unmanaged", OK),
        ("", OK),
        ("ready", refused),
        ("registering", refused),
        ("inspecting", refused),
        ("provisioned", refused),
    ] {
        let outcome = rig.change(&host("h", spec(json!({}))), &state(status), adopt).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 externallyProvisioned in {status}");
    }
    let adopted = host("h", spec(json!({"externallyProvisioned": true})));
    let back = |host: &mut Value| host["spec"]["externallyProvisioned"] = json!(false);
    let outcome = rig.change(&adopted, &state("externally provisioned"), back).await;
    assert!(outcome.is_ok(), "1.1 externallyProvisioned back to false: {outcome:?}");
}

/// A host of before a rule can still lose its finalizer; what is broken anew is refused.
#[test]
fn a_rule_binds_from_the_next_change_on() {
    let old = host("h", json!({"online": true, "image": {"url": "file:///x", "checksum": "y"}, "firmware": {"a": 1}}));
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["a/b"]);
    assert_eq!(check(Some(&old), &new), []);
    assert_eq!(check(None, &new).len(), 2);
    new["spec"]["image"]["url"] = json!("file:///z");
    let faults: Vec<_> = check(Some(&old), &new).into_iter().map(|fault| fault.path).collect();
    assert_eq!(faults, ["spec.image.url"]);
}

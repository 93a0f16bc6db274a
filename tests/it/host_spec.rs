//! What a BareMetalHost may ask for in Metal3 and Slipway does not do is refused, not taken and forgotten.

use crate::process::Appliance;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use slipway::api::metal3::BareMetalHost;

fn host(over: &Value) -> BareMetalHost {
    let mut spec = json!({"online": true, "bootMACAddress": "02:00:00:00:00:01",
        "bmc": {"address": "redfish+http://127.0.0.1:9/redfish/v1/Systems/1", "credentialsName": "bmc"}});
    spec.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "h"}, "spec": spec})).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_is_refused_by_name() {
    slipway::appliance::install_tls_provider();
    let appliance = Appliance::with("[bmc]\nallow = [\"127.0.0.1\"]\n").await;
    let hosts = Api::<BareMetalHost>::namespaced(appliance.client().await, "default");
    let mirror = json!([{"level": "1"}]);
    let port = json!({"switchID": "02:00:00:00:00:02", "portID": "Ethernet1/1"});
    let rows = [
        (json!({"raid": {"hardwareRAIDVolumes": mirror}}), "spec.raid.hardwareRAIDVolumes"),
        (json!({"raid": {"softwareRAIDVolumes": mirror}}), "spec.raid.softwareRAIDVolumes"),
        (json!({"bootMode": "UEFISecureBoot"}), "spec.bootMode"),
        (json!({"architecture": "aarch64"}), "spec.architecture"),
        (json!({"networkInterfaces": [{"name": "eno1", "switchPort": port}]}), "spec.networkInterfaces[0].switchPort"),
        (json!({"firmware": {"sriovEnabled": true}}), "spec.firmware"),
    ];
    for (spec, field) in &rows {
        let refused = hosts.create(&PostParams::default(), &host(spec)).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("{spec} is taken") };
        let causes = status.details.as_ref().map(|details| &details.causes[..]).unwrap_or_default();
        assert_eq!(causes.iter().map(|cause| cause.field.as_str()).collect::<Vec<_>>(), [*field], "{status:?}");
        assert!(status.code == 422 && status.message.contains("not supported yet"), "{status:?}");
    }
    // What asks for nothing is taken, and stays so until somebody asks for more.
    let nothing = json!({"raid": {"hardwareRAIDVolumes": [], "softwareRAIDVolumes": null}, "bootMode": "UEFI",
        "architecture": "x86_64", "networkInterfaces": [{"name": "eno1"}], "firmware": null});
    hosts.create(&PostParams::default(), &host(&nothing)).await.unwrap();
    for (spec, field) in &rows {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let refused = hosts.patch("h", &PatchParams::default(), &patch).await;
        assert!(refused.is_err_and(|error| error.to_string().contains(field)), "{spec} is taken");
    }
}

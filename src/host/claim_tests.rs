//! What somebody in another namespace writes about addresses, and what it does to a host.

use super::*;
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, ANNOTATION_PAUSED, ANNOTATION_STATUS, InspectionMode};
use crate::api::slipway::{ANNOTATION_MOVED_TO, ANNOTATION_REGISTRATION};
use crate::bmc::BmcAddress;
use crate::host::crowd::Crowd;
use crate::host::directory::Directory;
use crate::runtime::Change;

#[tokio::test]
async fn what_another_namespace_says_of_addresses_holds_up_nobody() {
    let site = Site::idle().await;
    site.reconcile().await;
    let metadata = ObjectMeta { name: Some("tenant".into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "tenant");
    let create = async |name: &str, change: &dyn Fn(&mut BareMetalHost)| {
        let mut host = site.host();
        host.metadata.name = Some(name.into());
        host.spec.inspection_mode = Some(InspectionMode::Disabled);
        change(&mut host);
        hosts.create(&PostParams::default(), &host).await.unwrap();
        site.until("it was looked at", async || hosts.get(name).await.unwrap().status.is_some()).await;
    };
    let error = async |name: &str| hosts.get(name).await.unwrap().status.unwrap_or_default().error_message;
    // There before the victim: without a BMC; with its BMC and no credentials; with its card, from two annotations.
    create("bare", &|host| host.spec.bmc = None).await;
    create("named", &|_| {}).await;
    let nics = json!({ "nics": [{ "name": "eth0", "mac": "02:00:00:00:00:01" }] }).to_string();
    create("cards", &|host| {
        host.spec.bmc = None;
        host.spec.boot_mac_address = Some("02:00:00:00:00:66".into());
        host.annotations_mut().insert(ANNOTATION_HARDWARE_DETAILS.into(), nics.clone());
    })
    .await;
    create("restored", &|host| {
        let hardware = serde_json::from_str(&nics).unwrap();
        let state = ProvisioningState::Provisioned;
        let status = BareMetalHostStatus {
            provisioning: ProvisionStatus { state, id: "elsewhere".into(), ..ProvisionStatus::default() },
            hardware: Some(hardware),
            ..BareMetalHostStatus::default()
        };
        host.annotations_mut().insert(ANNOTATION_STATUS.into(), serde_json::to_string(&status).unwrap());
    })
    .await;

    site.create(&site.host()).await;
    site.until("it is inspected", async || site.status().await.provisioning.state == ProvisioningState::Inspecting)
        .await;
    site.until("its machine is started", async || site.machine.is_on()).await;

    // And after it, with credentials that are good.
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::namespaced(site.client.clone(), "tenant");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    create("late", &|_| {}).await;
    site.until("it is refused, and told no name", async || {
        error("late").await.ends_with("is already that of a BareMetalHost in another namespace: correct one of the two")
    })
    .await;
    let status = site.status().await;
    assert_eq!((status.error_type, status.error_message.as_str()), (None, ""));
    assert_eq!(status.provisioning.state, ProvisioningState::Inspecting);
}

/// A namespace with the credentials that the simulated BMC takes.
async fn namespace(site: &Site, name: &str) {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::namespaced(site.client.clone(), name);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
}

/// Who has an address and a BMC for a process that starts now, to which hosts are listed in this order: by DHCP's index,
/// and by the reconciler, asked for each of them.
async fn after_a_start(site: &Site, mac: MacAddress, reversed: bool) -> (String, Vec<String>) {
    let end = site.shutdown.child_token();
    let index = Directory::start(&site.client, &end).await.index;
    let crowd = Crowd::new(index.clone());
    let mut all = Api::<BareMetalHost>::all(site.client.clone()).list(&Default::default()).await.unwrap().items;
    if reversed {
        all.reverse();
    }
    all.iter().for_each(|host| crowd.take(&Change::Put(&HostView::from(host))));
    crowd.take(&Change::Listed);
    let refused = |host: &&BareMetalHost| {
        let own = host.spec.boot_mac_address.as_deref().is_some_and(|own| own.parse() == Ok(mac));
        let bmc = host.spec.bmc.as_ref().map(|bmc| BmcAddress::parse(&bmc.address).unwrap());
        (own && crowd.mac_owner(*host, &mac.to_string()).is_some())
            || bmc.is_some_and(|bmc| crowd.bmc_owner(*host, &bmc).is_some())
    };
    let refused = all.iter().filter(refused).map(label).collect();
    let owner = index.by_mac(mac).map(|host| format!("{}/{}", host.namespace, host.name)).unwrap_or_default();
    end.cancel();
    (owner, refused)
}

#[tokio::test]
async fn an_older_host_of_another_namespace_does_not_have_the_address_after_a_restart() {
    // Paused, nothing is written of it. And somebody may have the right to write its status.
    for forged in [false, true] {
        let mut site = Site::idle().await;
        site.reconcile().await;
        namespace(&site, "evil").await;
        let evil = Api::<BareMetalHost>::namespaced(site.client.clone(), "evil");
        let mut elder = site.host();
        elder.metadata.name = Some("elder".into());
        elder.spec.boot_mac_address = None;
        elder.spec.externally_provisioned = true;
        let made = evil.create(&PostParams::default(), &elder).await.unwrap();
        site.until("it is registered", async || {
            let status = evil.get("elder").await.unwrap().status.unwrap_or_default();
            !status.provisioning.id.is_empty()
        })
        .await;
        // A creation time has seconds: the second one must be younger.
        let made = made.creation_timestamp().unwrap().0;
        site.until("the next second", async || Timestamp::now() > made + Duration::from_secs(1)).await;
        site.machine = Arc::new(Machine::new(Profile::default()));
        site.redfish(RedfishOptions::default()).await;
        site.create(&site.host()).await;
        site.until("the victim is registered", async || !site.status().await.provisioning.id.is_empty()).await;

        let mac = "02:00:00:00:00:01";
        let annotations = json!({ ANNOTATION_PAUSED: "" });
        let patch = json!({ "metadata": { "annotations": annotations }, "spec": { "bootMACAddress": mac } });
        let elder = evil.patch("elder", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        if forged {
            let earlier = "2020-01-01T00:00:00Z";
            let patch = json!({ "status": { "provisioning": { "ID": elder.metadata.uid }, "operationalStatus": "OK",
                "lastUpdated": earlier, "operationHistory": { "register": { "start": earlier, "end": earlier } } } });
            evil.patch_status("elder", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        for reversed in [false, true] {
            let (owner, refused) = after_a_start(&site, mac.parse().unwrap(), reversed).await;
            assert_eq!(owner, "rack/h", "forged: {forged}, reversed: {reversed}");
            assert_eq!(refused, ["evil/elder"], "forged: {forged}, reversed: {reversed}");
        }
    }
}

#[tokio::test]
async fn a_host_that_is_moved_keeps_its_machine_from_who_is_faster() {
    let mut site = Site::idle().await;
    site.reconcile().await;
    namespace(&site, "evil").await;
    namespace(&site, "lab").await;
    let mut host = site.host();
    host.spec.externally_provisioned = true;
    site.create(&host).await;
    let registered = |host: &BareMetalHost| {
        host.status.as_ref().is_some_and(|status| Some(&status.provisioning.id) == host.metadata.uid.as_ref())
    };
    site.until("it is registered", async || registered(&site.get().await)).await;

    let first = site.api::<BootIntent>().get("h").await.unwrap().registration().unwrap().since;

    // Somebody names its address, with a BMC of his own, and has it looked at whenever he likes.
    let mut faster = host.clone();
    site.machine = Arc::new(Machine::new(Profile::default()));
    site.redfish(RedfishOptions::default()).await;
    faster.metadata.name = Some("faster".into());
    faster.spec.bmc.as_mut().unwrap().address = site.bmc.clone();
    let evil = Api::<BareMetalHost>::namespaced(site.client.clone(), "evil");
    evil.create(&PostParams::default(), &faster).await.unwrap();
    let intents = Api::<BootIntent>::namespaced(site.client.clone(), "evil");
    let tries = std::cell::Cell::new(0);
    let refused = async |when: &str| {
        tries.set(tries.get() + 1);
        let patch = Patch::Merge(json!({ "spec": { "description": format!("try {}", tries.get()) } }));
        let patched = evil.patch("faster", &PatchParams::default(), &patch).await.unwrap();
        let generation = patched.metadata.generation.unwrap_or_default();
        site.until("it was tried", async || {
            let tried = intents.get_opt("faster").await.unwrap().map_or(0, |intent| intent.spec.host_generation);
            tried >= generation || registered(&evil.get("faster").await.unwrap())
        })
        .await;
        assert!(!registered(&evil.get("faster").await.unwrap()), "{when}");
    };
    refused("both are there").await;

    site.annotate(ANNOTATION_DETACHED, Some(r#"{"moving":true}"#)).await;
    site.until("it is detached", async || site.status().await.operational_status == OperationalStatus::Detached).await;
    refused("it is detached to be moved").await;
    let status = json!({ "operationalStatus": "OK", "provisioning": { "state": "externally provisioned", "ID": "x" } });
    host.annotations_mut().insert(ANNOTATION_STATUS.into(), status.to_string());
    host.annotations_mut().insert(ANNOTATION_PAUSED.into(), "until it is gone".into());
    let lab = Api::<BareMetalHost>::namespaced(site.client.clone(), "lab");
    let copy = lab.create(&PostParams::default(), &host).await.unwrap();
    refused("it is copied").await;
    let heir = format!("lab/h/{}", copy.metadata.uid.clone().unwrap());
    site.annotate(ANNOTATION_MOVED_TO, Some(&heir)).await;
    site.delete().await;
    site.until_gone().await;
    refused("its copy is paused").await;
    let free = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: null } } });
    lab.patch("h", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    site.until("its copy is registered", async || registered(&lab.get("h").await.unwrap())).await;
    refused("its copy is registered").await;
    let (owner, refused) = after_a_start(&site, "02:00:00:00:00:01".parse().unwrap(), true).await;
    assert_eq!((owner.as_str(), refused), ("lab/h", vec!["evil/faster".to_owned()]));
    let record = Api::<BootIntent>::namespaced(site.client.clone(), "lab").get("h").await.unwrap().registration();
    assert_eq!(record.unwrap().since, first);
}

#[tokio::test]
async fn what_an_older_version_registered_stays_so_once() {
    let site = Site::idle().await;
    site.provision().await;
    let uid = site.get().await.metadata.uid.unwrap();
    let patch = Patch::Merge(json!({ "status": { "provisioning": { "ID": uid } } }));
    site.api::<BareMetalHost>().patch_status("h", &PatchParams::default(), &patch).await.unwrap();
    // Nothing is written of it, and its record must be there all the same.
    site.annotate(ANNOTATION_PAUSED, Some("")).await;
    let intents = site.api::<BootIntent>();
    intents.create(&PostParams::default(), &BootIntent::new("never", BootIntentSpec::default())).await.unwrap();
    site.reconcile().await;
    let record = async |name: &str| intents.get(name).await.unwrap().registration();
    site.until("they are recorded", async || record("h").await.is_some() && record("never").await.is_some()).await;
    let mac: MacAddress = "02:00:00:00:00:01".parse().unwrap();
    assert!(record("h").await.unwrap().fits(Some(mac), &site.bmc));
    assert_eq!(record("never").await, Some(Default::default()));
    // It is never done again: what it names by now it was not registered with.
    let patch = json!({ "metadata": { "annotations": { ANNOTATION_REGISTRATION: "{}" } } });
    intents.patch("h", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    registration::complete(&site.client, &site.shutdown).await;
    assert_eq!(record("h").await, Some(Default::default()));
}

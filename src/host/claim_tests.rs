//! What somebody in another namespace writes about addresses, and what it does to a host.

use super::*;
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, ANNOTATION_PAUSED, ANNOTATION_STATUS, InspectionMode};
use crate::bmc::BmcAddress;

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
    let (index, ready) = (HostIndex::default(), watch::channel(false));
    let (mut listed, intents) = (ready.1, Intents::default());
    let end = site.shutdown.child_token();
    tokio::spawn(watches::keep(site.client.clone(), index.clone(), intents, ready.0, end.clone()));
    listed.wait_for(|listed| *listed).await.unwrap();
    let crowd = Crowd::new(index.clone());
    let mut all = Api::<BareMetalHost>::all(site.client.clone()).list(&Default::default()).await.unwrap().items;
    if reversed {
        all.reverse();
    }
    let view = |host: &BareMetalHost| serde_json::from_value(serde_json::to_value(host).unwrap()).unwrap();
    crowd.take(&watcher::Event::Init);
    all.iter().for_each(|host| crowd.take(&watcher::Event::InitApply(view(host))));
    crowd.take(&watcher::Event::InitDone);
    let refused = |host: &&BareMetalHost| {
        let own = host.spec.boot_mac_address.as_deref().is_some_and(|own| own.parse() == Ok(mac));
        let bmc = host.spec.bmc.as_ref().map(|bmc| BmcAddress::parse(&bmc.address).unwrap());
        (own && crowd.mac_owner(*host, &mac.to_string()).is_some())
            || bmc.is_some_and(|bmc| crowd.bmc_owner(*host, &bmc).is_some())
    };
    let refused = all.iter().filter(refused).map(|host| label(host)).collect();
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

//! Tests of claims: what somebody in another namespace writes about addresses, and what it does to a host.

use super::*;
use crate::api::MacAddress;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, ANNOTATION_PAUSED, ANNOTATION_STATUS, InspectionMode};
use crate::api::slipway::{ANNOTATION_MOVED_TO, ANNOTATION_REGISTRATION};
use crate::bmc::BmcAddress;
use crate::host::directory::Directory;
use crate::host::directory::conflicts::ConflictIndex;
use crate::runtime::WatchChange;

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

#[tokio::test]
async fn of_many_that_name_one_machine_at_once_one_is_recorded() {
    const MANY: usize = 8;
    let mut site = Site::idle().await;
    let mut hosts = Vec::new();
    for number in 0..MANY {
        let name = format!("tenant-{number}");
        namespace(&site, &name).await;
        site.machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        site.redfish(RedfishOptions::default()).await;
        let mut host = site.host();
        host.spec.externally_provisioned = true;
        let hosts_of = Api::<BareMetalHost>::namespaced(site.client.clone(), &name);
        hosts_of.create(&PostParams::default(), &host).await.unwrap();
        hosts.push(hosts_of);
    }
    // All are there when it starts.
    site.reconcile().await;
    site.until("all are decided upon", async || {
        let mut decided = 0;
        for hosts in &hosts {
            let status = hosts.get("h").await.unwrap().status.unwrap_or_default();
            decided += usize::from(!status.provisioning.id.is_empty() || status.error_message.contains("already that"));
        }
        decided == MANY
    })
    .await;
    let intents = Api::<BootIntent>::all(site.client.clone()).list(&Default::default()).await.unwrap().items;
    let is_recorded = |intent: &&BootIntent| intent.registration().is_some_and(|record| record.since > 0);
    let recorded: Vec<String> = intents.iter().filter(is_recorded).map(label).collect();
    assert_eq!((intents.len(), recorded.len()), (MANY, 1), "{recorded:?}");
}

/// Who has an address and a BMC for a process that starts now, to which hosts are listed in this order: by DHCP's index,
/// and by the reconciler, asked for each of them.
async fn after_a_start(site: &Site, mac: MacAddress, reversed: bool) -> (String, Vec<String>) {
    let end = site.shutdown.child_token();
    let index = Directory::start(&site.client, &end).await.index;
    let conflicts = ConflictIndex::new(index.clone());
    let mut all = Api::<BareMetalHost>::all(site.client.clone()).list(&Default::default()).await.unwrap().items;
    if reversed {
        all.reverse();
    }
    all.iter().for_each(|host| conflicts.take(&WatchChange::Put(&HostView::from(host))));
    conflicts.take(&WatchChange::Listed);
    let refused = |host: &&BareMetalHost| {
        let own = host.spec.boot_mac_address.as_deref().is_some_and(|own| own.parse() == Ok(mac));
        let bmc = host.spec.bmc.as_ref().map(|bmc| BmcAddress::parse(&bmc.address).unwrap());
        (own && conflicts.mac_owner(*host, &mac.to_string()).is_some())
            || bmc.is_some_and(|bmc| conflicts.bmc_owner(*host, &bmc).is_some())
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
        site.machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
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

fn registered(host: &BareMetalHost) -> bool {
    host.status.as_ref().is_some_and(|status| Some(&status.provisioning.id) == host.metadata.uid.as_ref())
}

/// Somebody in the namespace `evil` who names a host's addresses, with a BMC of his own, and has it looked at whenever he
/// likes.
struct Rival {
    name: &'static str,
    hosts: Api<BareMetalHost>,
    intents: Api<BootIntent>,
    tries: std::cell::Cell<u32>,
}

impl Rival {
    async fn new(site: &mut Site, host: &BareMetalHost, name: &'static str) -> Self {
        let mut rival = host.clone();
        site.machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        site.redfish(RedfishOptions::default()).await;
        rival.metadata.name = Some(name.into());
        rival.spec.bmc.as_mut().unwrap().address = site.bmc.clone();
        rival.spec.externally_provisioned = true;
        let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "evil");
        hosts.create(&PostParams::default(), &rival).await.unwrap();
        let intents = Api::<BootIntent>::namespaced(site.client.clone(), "evil");
        Self { name, hosts, intents, tries: <_>::default() }
    }

    /// Tries once more; the generation that is tried.
    async fn tries(&self) -> i64 {
        self.tries.set(self.tries.get() + 1);
        let patch = Patch::Merge(json!({ "spec": { "description": format!("try {}", self.tries.get()) } }));
        let patched = self.hosts.patch(self.name, &PatchParams::default(), &patch).await.unwrap();
        patched.metadata.generation.unwrap_or_default()
    }

    /// Tries once more, and does not get the machine.
    async fn is_refused(&self, site: &Site, when: &str) {
        let generation = self.tries().await;
        let has_it = async || registered(&self.hosts.get(self.name).await.unwrap());
        site.until("it was tried", async || {
            let tried = self.intents.get_opt(self.name).await.unwrap().map_or(0, |intent| intent.spec.host_generation);
            tried >= generation || has_it().await
        })
        .await;
        assert!(!has_it().await, "{when}");
    }
}

#[tokio::test]
async fn a_detached_host_keeps_its_machine_until_it_goes() {
    let mut site = Site::idle().await;
    site.reconcile().await;
    namespace(&site, "evil").await;
    let mut host = site.host();
    host.spec.externally_provisioned = true;
    site.create(&host).await;
    site.until("it is registered", async || registered(&site.get().await)).await;
    let own = site.machine.clone();
    let rival = Rival::new(&mut site, &host, "rival").await;
    rival.is_refused(&site, "both are there").await;
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.until("it is detached", async || site.status().await.operational_status == OperationalStatus::Detached).await;
    rival.is_refused(&site, "it is detached").await;
    // Its BMC gets another address, at which it does not answer yet.
    let silent = json!({ "spec": { "bmc": { "address": "ipmi://127.0.0.1:9" } } });
    site.patch(silent).await;
    site.annotate(ANNOTATION_DETACHED, None).await;
    site.until("it is back", async || site.status().await.operational_status != OperationalStatus::Detached).await;
    rival.is_refused(&site, "its BMC does not answer").await;
    site.machine = own;
    site.redfish(RedfishOptions::default()).await;
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.until("it is away", async || site.status().await.operational_status == OperationalStatus::Detached).await;
    site.patch(json!({ "spec": { "bmc": { "address": site.bmc } } })).await;
    site.annotate(ANNOTATION_DETACHED, None).await;
    site.until("it is registered again", async || registered(&site.get().await)).await;
    rival.is_refused(&site, "its BMC answers at another address").await;
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.delete().await;
    site.until_gone().await;
    rival.tries().await;
    site.until("the rival is registered", async || registered(&rival.hosts.get("rival").await.unwrap())).await;
}

#[tokio::test]
async fn who_has_a_machine_has_all_its_network_cards() {
    let mut site = Site::idle().await;
    site.reconcile().await;
    namespace(&site, "evil").await;
    site.create(&site.host()).await;
    let played = site.api::<BootIntent>();
    site.until("there is an intent", async || played.get_opt("h").await.unwrap().is_some()).await;
    let agent = site.play_agent();
    let test = async {
        site.until("it was inspected", async || site.status().await.provisioning.state == ProvisioningState::Available)
            .await;
    };
    tokio::select! {
        () = test => {}
        () = agent => panic!("the agent ended"),
    }
    let card = "02:00:00:00:00:02";
    let mut named = site.host();
    named.spec.boot_mac_address = Some(card.into());
    let rival = Rival::new(&mut site, &named, "rival").await;
    rival.is_refused(&site, "its agent reported the card").await;
    // It is noted as tried before the reason is stored.
    site.until("it says why", async || {
        let error = rival.hosts.get("rival").await.unwrap().status.unwrap_or_default().error_message;
        error.contains("already that of a BareMetalHost in another namespace")
    })
    .await;
    for reversed in [false, true] {
        let (owner, refused) = after_a_start(&site, card.parse().unwrap(), reversed).await;
        assert_eq!((owner.as_str(), refused), ("rack/h", vec!["evil/rival".to_owned()]), "reversed: {reversed}");
    }
    // The next boot's session begins without the report; what was reported stays known.
    let patch = Patch::Merge(json!({ "status": { "inventory": null, "results": null } }));
    played.patch_status("h", &PatchParams::default(), &patch).await.unwrap();
    rival.is_refused(&site, "the report is gone").await;
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
    site.until("it is registered", async || registered(&site.get().await)).await;

    let first = site.api::<BootIntent>().get("h").await.unwrap().registration().unwrap().since;

    let rival = Rival::new(&mut site, &host, "faster").await;
    rival.is_refused(&site, "both are there").await;

    site.annotate(ANNOTATION_DETACHED, Some(r#"{"moving":true}"#)).await;
    site.until("it is detached", async || site.status().await.operational_status == OperationalStatus::Detached).await;
    rival.is_refused(&site, "it is detached to be moved").await;
    let status = json!({ "operationalStatus": "OK", "provisioning": { "state": "externally provisioned", "ID": "x" } });
    host.annotations_mut().insert(ANNOTATION_STATUS.into(), status.to_string());
    host.annotations_mut().insert(ANNOTATION_PAUSED.into(), "until it is gone".into());
    let lab = Api::<BareMetalHost>::namespaced(site.client.clone(), "lab");
    let copy = lab.create(&PostParams::default(), &host).await.unwrap();
    rival.is_refused(&site, "it is copied").await;
    let heir = format!("lab/h/{}", copy.metadata.uid.clone().unwrap());
    site.annotate(ANNOTATION_MOVED_TO, Some(&heir)).await;
    site.delete().await;
    site.until_gone().await;
    rival.is_refused(&site, "its copy is paused").await;
    let free = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: null } } });
    lab.patch("h", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    site.until("its copy is registered", async || registered(&lab.get("h").await.unwrap())).await;
    rival.is_refused(&site, "its copy is registered").await;
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
    registration::complete(&site.client, &Tasks::default().task("again"), &site.shutdown).await;
    assert_eq!(record("h").await, Some(Default::default()));
}

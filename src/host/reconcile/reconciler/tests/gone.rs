//! Hosts that go, and what goes with them.

use super::*;

#[tokio::test]
async fn a_namespace_that_ends_takes_its_host_through_the_wipe() {
    let site = Site::provisioned().await;
    let namespaces = Api::<Namespace>::all(site.client.clone());
    namespaces.delete("rack", &DeleteParams::default()).await.unwrap();
    site.until("the agent is to clean the disks", async || {
        let intent = site.api::<BootIntent>().get_opt("h").await.unwrap();
        let steps = intent.map(|intent| intent.spec.steps).unwrap_or_default();
        steps.iter().any(|step| step.action == StepAction::Erase)
    })
    .await;
    assert!(namespaces.get_opt("rack").await.unwrap().is_some());
    tokio::select! {
        () = site.play_agent() => {}
        () = site.until("never", async || false) => {}
    }
    site.until("the namespace is gone", async || namespaces.get_opt("rack").await.unwrap().is_none()).await;
    assert!(!site.machine.is_on());
}

#[tokio::test]
async fn an_intent_that_a_user_deletes_goes_and_one_without_its_host_too() {
    let site = Site::provisioned().await;
    let intents = site.api::<BootIntent>();
    let first = intents.get("h").await.unwrap().uid();
    intents.delete("h", &DeleteParams::default()).await.unwrap();
    site.until("the old intent is gone", async || {
        intents.get_opt("h").await.unwrap().and_then(|intent| intent.uid()) != first
    })
    .await;

    let site = Site::provisioned().await;
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let pause = Patch::Merge(json!({ "metadata": { "annotations": { "baremetalhost.metal3.io/paused": "" } } }));
    let hosts = site.api::<BareMetalHost>();
    hosts.patch("h", &PatchParams::default(), &pause).await.unwrap();
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    hosts.patch("h", &PatchParams::default(), &patch).await.unwrap();
    site.until("the intent follows its host", async || site.api::<BootIntent>().get_opt("h").await.unwrap().is_none())
        .await;
}

#[tokio::test]
async fn what_a_host_held_goes_with_it_although_somebody_took_its_finalizer() {
    let site = Site::provisioned().await;
    let (hosts, data, secrets) = (site.api::<BareMetalHost>(), site.api::<HardwareData>(), site.api::<Secret>());
    let held = |secret: Secret| secret.finalizers().contains(&crate::api::metal3::FINALIZER_SECRET.to_owned());
    site.until("it holds its secret", async || held(secrets.get("bmc").await.unwrap())).await;
    let hardware = hardware_data::new(&site.get().await, "inspect@7", HardwareDetails::default());
    data.create(&PostParams::default(), &hardware).await.unwrap();
    site.annotate("baremetalhost.metal3.io/paused", Some("")).await;
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    site.patch(json!({ "metadata": { "finalizers": null } })).await;
    site.until("nothing is left", async || {
        let secret = secrets.get_opt("bmc").await.unwrap();
        data.get_opt("h").await.unwrap().is_none()
            && site.api::<BootIntent>().get_opt("h").await.unwrap().is_none()
            && secret.is_none_or(|secret| !held(secret))
    })
    .await;
}

#[tokio::test]
async fn an_intent_whose_host_went_while_nobody_looked_is_let_go_at_the_next_start() {
    let site = Site::idle().await;
    let intents = site.api::<BootIntent>();
    let left = registration::new(&site.host(), BootIntentSpec::default(), &Default::default());
    intents.create(&PostParams::default(), &left).await.unwrap();
    intents.delete("h", &DeleteParams::default()).await.unwrap();
    assert!(intents.get("h").await.unwrap().metadata.deletion_timestamp.is_some());
    site.reconcile().await;
    site.until("it is let go", async || intents.get_opt("h").await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_host_made_anew_begins_with_an_intent_of_its_own() {
    let site = Site::idle().await;
    let secret = site.api::<Secret>().get("bmc").await.unwrap();
    // Of somebody who is there, so that nobody but the host itself takes it away.
    let metadata = ObjectMeta {
        name: Some("h".into()),
        owner_references: secret.controller_owner_ref(&()).map(|owner| vec![owner]),
        finalizers: Some(vec![crate::api::slipway::FINALIZER_INTENT.into()]),
        ..ObjectMeta::default()
    };
    let spec = BootIntentSpec { generation: 30, disks_clean: true, ..BootIntentSpec::default() };
    let intents = site.api::<BootIntent>();
    intents.create(&PostParams::default(), &BootIntent { metadata, spec, status: None }).await.unwrap();
    let host = site.create(&site.host()).await;
    site.reconcile().await;
    site.until("the intent is the host's own", async || {
        intents.get_opt("h").await.unwrap().is_some_and(|intent| {
            let owner = intent.owner_references().first().map(|owner| owner.uid.clone());
            owner == host.uid() && intent.spec.generation < 30 && !intent.spec.disks_clean
        })
    })
    .await;
}

#[tokio::test]
async fn hardware_data_may_be_deleted_and_goes_with_its_host() {
    let site = Site::provisioned().await;
    let (hosts, all) = (site.api::<BareMetalHost>(), site.api::<HardwareData>());
    let host = hosts.get("h").await.unwrap();
    let create = async || {
        let mut data = HardwareData::new("h", HardwareDataSpec::default());
        data.metadata.owner_references = host.controller_owner_ref(&()).map(|owner| vec![owner]);
        data.metadata.finalizers = Some(vec![FINALIZER_HARDWARE_DATA.into()]);
        all.create(&PostParams::default(), &data).await.unwrap()
    };
    let starts = site.machine.boots();
    create().await;
    all.delete("h", &DeleteParams::default()).await.unwrap();
    site.until("a deleted one ends", async || all.get_opt("h").await.unwrap().is_none()).await;
    let status = hosts.get("h").await.unwrap().status.unwrap();
    assert_eq!((status.provisioning.state, status.error_type), (ProvisioningState::Provisioned, None));
    assert!(site.machine.is_on() && site.machine.boots() == starts, "nothing was done to the machine");

    create().await;
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    let gone = async || hosts.get_opt("h").await.unwrap().is_none() && all.get_opt("h").await.unwrap().is_none();
    tokio::select! {
        () = site.until("both are gone", gone) => {}
        () = site.play_agent() => site.until("both are gone", gone).await,
    }
}

#[tokio::test]
async fn an_externally_provisioned_host_is_powered_off_and_not_wiped_when_it_is_deleted() {
    let site = Site::idle().await;
    site.machine.power(PowerCommand::On);
    site.reconcile().await;
    let mut host = site.host();
    host.spec.externally_provisioned = true;
    site.create(&host).await;
    site.until("it is taken over", async || {
        site.status().await.provisioning.state == ProvisioningState::ExternallyProvisioned
    })
    .await;
    let seen = site.watch_states(ProvisioningState::Deleting).await;
    site.delete().await;
    site.until_gone().await;
    assert_eq!(seen.await.unwrap(), ["externally provisioned", "powering off before delete", "deleting"]);
    assert!(!site.machine.is_on());
}

#[tokio::test]
async fn a_host_goes_from_every_state_that_it_is_deleted_in() {
    let site = Site::idle().await;
    site.reconcile().await;
    for state in [
        "",
        "unmanaged",
        "registering",
        "inspecting",
        "match profile",
        "preparing",
        "available",
        "ready",
        "provisioning",
        "provisioned",
        "externally provisioned",
        "deprovisioning",
        "powering off before delete",
        "deleting",
    ] {
        let mut host = site.host();
        host.annotations_mut().insert("baremetalhost.metal3.io/paused".into(), String::new());
        host.finalizers_mut().push(crate::api::metal3::FINALIZER_HOST.into());
        let mut host = site.create(&host).await;
        let mut status = BareMetalHostStatus { last_updated: Some(Time(Timestamp::now())), ..Default::default() };
        status.provisioning.state = serde_json::from_value(state.into()).unwrap();
        host.status = Some(status);
        site.api::<BareMetalHost>().replace_status("h", &PostParams::default(), &host).await.unwrap();
        site.delete().await;
        site.annotate("baremetalhost.metal3.io/paused", None).await;
        let agent = async {
            loop {
                site.play_agent().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = agent => {}
            () = site.until_gone() => {}
        }
        assert!(site.api::<BootIntent>().get_opt("h").await.unwrap().is_none(), "{state}");
    }
}

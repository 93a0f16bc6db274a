//! Starts of a machine: which are asked for, and which are noted.

use super::*;

#[tokio::test]
async fn a_reboot_annotation_reboots_once_and_a_holder_holds() {
    let site = Site::provisioned().await;
    let boots = site.machine.boots().len();
    site.annotate("reboot.metal3.io", Some("")).await;
    site.until("the reboot is done", async || {
        let host = site.get().await;
        !host.annotations().contains_key("reboot.metal3.io") && host.status.is_some_and(|status| status.powered_on)
    })
    .await;
    assert_eq!(site.machine.boots().len(), boots + 1);
    site.annotate("reboot.metal3.io/remediation", Some(r#"{"mode":"hard"}"#)).await;
    site.until("it is off", async || !site.status().await.powered_on).await;
    assert!(!site.machine.is_on());
    site.annotate("reboot.metal3.io/remediation", None).await;
    site.until("it is on again", async || site.status().await.powered_on).await;
    assert_eq!((site.machine.is_on(), site.machine.boots().len()), (true, boots + 2));
}

#[tokio::test]
async fn a_start_is_noted_in_the_boot_that_it_was_of_and_in_no_other() {
    let site = Site::idle().await;
    let (reconciler, intents) = (site.reconciler(), site.api::<BootIntent>());
    let note = async |of: &BootIntent| {
        let at = Some(Time(Timestamp::now()));
        boot_effect::note(&reconciler.context, of, move |spec| spec.started = at.clone()).await
    };
    let spec = BootIntentSpec { generation: 5, target: BootTarget::Ramdisk, ..BootIntentSpec::default() };
    let first = intents.create(&PostParams::default(), &BootIntent::new("h", spec.clone())).await.unwrap();
    // The agent was faster.
    let status = Patch::Merge(json!({ "status": { "log": ["here I am"] } }));
    intents.patch_status("h", &PatchParams::default(), &status).await.unwrap();
    note(&first).await.unwrap();
    let noted = intents.get("h").await.unwrap();
    assert!(noted.spec.started.is_some() && noted.status.is_some_and(|status| status.log.len() == 1));

    let next = Patch::Merge(json!({ "spec": { "generation": 6, "started": null } }));
    let second = intents.patch("h", &PatchParams::default(), &next).await.unwrap();
    assert!(matches!(note(&first).await, Err(effects::EffectError::NotYet)));
    intents.delete("h", &DeleteParams::default()).await.unwrap();
    assert!(matches!(note(&second).await, Err(effects::EffectError::NotYet)));
    let spec = BootIntentSpec { generation: 6, ..spec };
    intents.create(&PostParams::default(), &BootIntent::new("h", spec)).await.unwrap();
    assert!(matches!(note(&second).await, Err(effects::EffectError::NotYet)), "made anew, with the same number");
    assert_eq!(intents.get("h").await.unwrap().spec.started, None);
}

#[tokio::test]
async fn a_reset_is_not_repeated_because_its_request_cannot_be_taken_off() {
    let site = Site::idle().await;
    let reconciler = site.reconciler();
    let mut host = site.host();
    host.spec.disable_power_off = true;
    host.annotations_mut().insert("reboot.metal3.io".into(), String::new());
    let decided_with = site.create(&host).await;
    site.machine.power(PowerCommand::On);
    site.until("it is on", async || site.machine.is_on()).await;
    let starts = site.machine.boots().len();
    let effect = lifecycle::Effect::Reboot { served: vec!["reboot.metal3.io".into()] };
    let reset = async |host: &BareMetalHost| effects::perform(&reconciler.context, host, None, &effect).await;

    // Somebody else writes the host while its BMC is at work.
    site.patch(json!({ "metadata": { "labels": { "team": "a" } } })).await;
    assert!(matches!(reset(&decided_with).await, Err(effects::EffectError::Api(_))));
    assert_eq!(site.machine.boots().len(), starts + 1);
    reset(&site.get().await).await.unwrap();
    assert_eq!(site.machine.boots().len(), starts + 1, "it was reset already");
    assert!(!site.get().await.annotations().contains_key("reboot.metal3.io"));

    site.annotate("reboot.metal3.io", Some("")).await;
    reset(&site.get().await).await.unwrap();
    assert_eq!(site.machine.boots().len(), starts + 2, "asked for anew");
}

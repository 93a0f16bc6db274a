//! The whole appliance killed (`kill -9`) in every state of a host's life and at moments that chance picks, and started
//! again on what it left: every host arrives, and no disk is written once more than it must be.
//!
//! A simulated rack (`slipway::simulate`) lives on in this process while the appliance, which is the real program, comes
//! and goes. After each kill its database is read where it lies, so that what counts is the state that hosts were in
//! when it died, and not the one that they were last seen in. What happened to each disk is kept by the rack.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use slipway::api::metal3::{BareMetalHost, BareMetalHostSpec, HardwareData};
use slipway::api::slipway::{BootIntent, Image};
use slipway::config::Config;
use slipway::simulate::appliance_process::{ApplianceProcess, serve_image};
use slipway::simulate::disk::{DiskContent, DiskEvent};
use slipway::simulate::objects::{self, HostWithSecret, RunObjects};
use slipway::simulate::plan::{Appliance, BmcKind, Delays, FaultRates, Goal, SimulatedDownload, SimulationPlan};
use slipway::simulate::rack::{RackMachine, SimulatedMachines};
use slipway::store::{Store, StoreOptions};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const NAMESPACE: &str = "rack";
const RUN: &str = "crash";
/// Hosts that get an image at once, and hosts that wait for theirs.
const PROMPT: usize = 9;
const LATE: usize = 3;
/// Not a machine to be written: somebody else installed it.
const FOREIGN: &str = "foreign";
/// A host without a BMC.
const BARE: &str = "bare";

/// Every state that a host passes or rests in.
const STATES: [&str; 11] = [
    "unmanaged",
    "registering",
    "inspecting",
    "preparing",
    "available",
    "provisioning",
    "provisioned",
    "externally provisioned",
    "deprovisioning",
    "powering off before delete",
    "deleting",
];
/// Kills that each state sees at least.
const EACH: usize = 2;
/// Kills by chance in each part of the hosts' life, while it lasts.
const BY_CHANCE: usize = 3;
/// Hosts deleted at once.
const BATCH: usize = 3;
/// More would mean that some state is never met.
const MOST: usize = 60;
/// A test that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(600);

/// Nothing that is waited for in life is waited for here.
const SETTINGS: &str = "\
[host]
retry = \"1s\"
boot_deadline = \"20s\"
agent_deadline = \"20s\"
power_poll = \"5s\"
[log]
level = \"info,slipway::host=debug\"
";

/// Hosts by name with their states, as the API tells them.
type States = BTreeMap<String, String>;

fn state_of(host: &BareMetalHost) -> String {
    host.status.as_ref().map_or("", |status| status.provisioning.state.as_str()).to_owned()
}

/// Follows the hosts as long as the appliance lives. Nothing is known before they are listed.
fn follow(client: Client) -> (AbortOnDropHandle<()>, watch::Receiver<Option<States>>) {
    let (sender, receiver) = watch::channel(None);
    let task = tokio::spawn(async move {
        let hosts = Api::<BareMetalHost>::namespaced(client, NAMESPACE);
        let mut events = watcher(hosts, watcher::Config::default()).boxed();
        let mut listed = States::new();
        while let Some(Ok(event)) = events.next().await {
            match event {
                watcher::Event::Init => listed.clear(),
                watcher::Event::InitApply(host) => drop(listed.insert(host.name_any(), state_of(&host))),
                watcher::Event::InitDone => drop(sender.send_replace(Some(listed.clone()))),
                watcher::Event::Apply(host) => {
                    sender.send_modify(|states| {
                        states.get_or_insert_default().insert(host.name_any(), state_of(&host));
                    });
                }
                watcher::Event::Delete(host) => {
                    sender.send_modify(|states| drop(states.get_or_insert_default().remove(&host.name_any())));
                }
            }
        }
    });
    (AbortOnDropHandle::new(task), receiver)
}

/// The states of all hosts in a database that nobody has open.
fn states_at_death(config: &Path) -> States {
    let folder = Config::load(config).unwrap().data_dir;
    let options = StoreOptions { path: folder.db(), key_file: folder.pki().join("store.key"), history: 10 };
    let store = Store::open(options).unwrap();
    let hosts = store.list("metal3.io/baremetalhosts", Some(NAMESPACE));
    let state = |value: &serde_json::Value| value["status"]["provisioning"]["state"].as_str().unwrap_or("").to_owned();
    hosts.objects.iter().map(|object| (object.name.clone(), state(&object.value()))).collect()
}

/// The appliance, and what is known of it.
struct Site {
    own: ApplianceProcess,
    _following: AbortOnDropHandle<()>,
    states: watch::Receiver<Option<States>>,
    machines: SimulatedMachines,
    /// How often it was killed in each state.
    killed: BTreeMap<String, usize>,
    kills: usize,
    chance: StdRng,
    until: Instant,
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the appliance's log:\n{}", self.own.log());
        }
    }
}

impl Site {
    fn objects(&self) -> RunObjects {
        RunObjects::new(self.own.client.clone(), NAMESPACE, RUN)
    }

    async fn kill(&mut self, reason: &str) {
        self.own.kill().await.unwrap();
        let config = self.own.config.clone();
        let died = tokio::task::spawn_blocking(move || states_at_death(&config)).await.unwrap();
        let mut met: Vec<String> = died.into_values().collect();
        met.sort();
        met.dedup();
        self.kills += 1;
        println!("kill {}, for {reason}: {}", self.kills, met.join(", "));
        for state in met {
            *self.killed.entry(state).or_default() += 1;
        }
        assert!(self.kills <= MOST, "not met often enough: {:?}", self.killed);
        self.own.restart().await.unwrap();
        (self._following, self.states) = follow(self.own.client.clone());
    }

    /// Kills whenever a host is in a state that had too few kills, and now and then, until `done` and all hosts rest.
    /// At most `by_chance` kills by chance.
    async fn until(&mut self, what: &str, mut by_chance: usize, done: impl Fn(&States, &SimulatedMachines) -> bool) {
        let mut next = self.moment();
        loop {
            let Some(states) = self.states.borrow_and_update().clone() else {
                let listed = timeout_at(self.until, self.states.changed()).await.expect("hosts listed in time");
                listed.unwrap_or_else(|_| panic!("{what}: the watch ended"));
                continue;
            };
            let wanted = |state: &&&str| {
                self.killed.get(**state).is_none_or(|met| *met < EACH) && states.values().any(|it| it == **state)
            };
            if let Some(state) = STATES.iter().find(wanted) {
                self.kill(state).await;
                continue;
            }
            if done(&states, &self.machines) {
                return println!("{what}: done after {} kills", self.kills);
            }
            if Instant::now() > self.until {
                self.fail(what, &states).await;
            }
            if by_chance > 0 && Instant::now() >= next {
                by_chance -= 1;
                self.kill("chance").await;
                next = self.moment();
                continue;
            }
            // Machines tell nobody what happens to their disks.
            let look = Instant::now() + Duration::from_millis(200);
            let wake = if by_chance > 0 { next.min(look) } else { look };
            tokio::select! {
                changed = self.states.changed() => changed.unwrap_or_else(|_| panic!("{what}: the watch ended")),
                () = sleep_until(wake) => {}
            }
        }
    }

    fn moment(&mut self) -> Instant {
        Instant::now() + Duration::from_millis(self.chance.random_range(100..2500))
    }

    async fn fail(&mut self, what: &str, states: &States) {
        let hosts = Api::<BareMetalHost>::namespaced(self.own.client.clone(), NAMESPACE);
        let hosts = hosts.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let intents = Api::<BootIntent>::namespaced(self.own.client.clone(), NAMESPACE);
        let intents = intents.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        for host in hosts {
            let intent = intents.iter().find(|intent| intent.name_any() == host.name_any());
            println!("{}: {:?}\n  {:?}", host.name_any(), host.status, intent.map(|it| (&it.spec, &it.status)));
        }
        for seen in &self.machines.all {
            println!("{}: on {}, {:?}", seen.name, seen.machine.is_on(), seen.disk.events());
        }
        panic!("{what}: not in time: {states:?}");
    }
}

/// A host without a BMC.
fn bare() -> BareMetalHost {
    // As the others are marked: only what is the run's own is deleted.
    let labels = Some(BTreeMap::from([("slipway.dev/simulated".to_owned(), RUN.to_owned())]));
    BareMetalHost {
        metadata: ObjectMeta {
            name: Some(BARE.into()),
            namespace: Some(NAMESPACE.into()),
            labels,
            ..ObjectMeta::default()
        },
        spec: BareMetalHostSpec::default(),
        status: None,
    }
}

/// What happened to a disk and what was started from it; starts of the ramdisk apart. What was broken off with the power
/// is begun again, and counts once.
fn done_to(seen: &RackMachine) -> Vec<DiskEvent> {
    let mut events: Vec<_> = seen.disk.events().into_iter().filter(|event| *event != DiskEvent::Ramdisk).collect();
    events.dedup();
    events
}

/// What must have happened to a machine that got an image.
fn installed(digest: &str) -> Vec<DiskEvent> {
    let image = DiskContent::Image(digest.to_owned());
    vec![
        DiskEvent::Erase,
        DiskEvent::Write(digest.to_owned()),
        DiskEvent::Written,
        DiskEvent::ConfigDrive,
        DiskEvent::System(image),
    ]
}

/// After its image is on the disk, no ramdisk starts until it is to be taken away.
fn rests(seen: &RackMachine) -> bool {
    let events = seen.disk.events();
    let written = events.iter().position(|event| *event == DiskEvent::Written).unwrap_or(events.len());
    !events[written..].contains(&DiskEvent::Ramdisk)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_every_state_every_host_arrives_and_no_disk_is_written_in_vain() {
    slipway::appliance::install_tls_provider();
    // What agents say is shown when the test fails.
    tracing_subscriber::fmt().with_env_filter("slipway=info").with_test_writer().init();
    let token = CancellationToken::new();
    let _ends = token.clone().drop_guard();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("slipway.toml");
    std::fs::write(&config, SETTINGS).unwrap();
    let short = Duration::from_millis(250);
    let plan = SimulationPlan {
        machines: PROMPT + LATE + 1,
        seed: 9,
        bmc: BmcKind::Mixed,
        bmc_address: None,
        boot: None,
        delays: Delays { bmc: short / 10, power: short, firmware: short, ramdisk: short, step: short },
        faults: FaultRates::default(),
        download: SimulatedDownload::Sample,
        until: Goal::Deleted,
        deadline: DEADLINE,
        namespace: NAMESPACE.into(),
        image: None,
        hosts: None,
        keep: false,
        stay: false,
        appliance: Appliance::Own { config: None },
    };
    let images = [serve_image(1, token.clone()).await.unwrap(), serve_image(2, token.clone()).await.unwrap()];
    let image = |number: usize| images[number % 2].clone();

    let program = Path::new(env!("CARGO_BIN_EXE_slipway"));
    let own = ApplianceProcess::start(program, Some(&config), plan.seed, false).await.unwrap();
    let mut made: Vec<HostWithSecret> = (0..plan.machines)
        .map(|number| objects::host(number, NAMESPACE, "secret", (number < PROMPT).then(|| image(number))))
        .collect();
    let foreign = made.last_mut().unwrap();
    foreign.host.metadata.name = Some(FOREIGN.into());
    foreign.host.spec.externally_provisioned = true;
    made.iter_mut().for_each(|one| one.mark(RUN));
    let machines = SimulatedMachines::start(&plan, own.network, &mut made, &token).await.unwrap();
    let (following, states) = follow(own.client.clone());
    let mut site = Site {
        own,
        _following: following,
        states,
        machines,
        killed: BTreeMap::new(),
        kills: 0,
        chance: StdRng::seed_from_u64(plan.seed),
        until: Instant::now() + DEADLINE,
    };
    let names: Vec<String> = site.machines.all.iter().map(|seen| seen.name.clone()).collect();
    let (prompt, late) = (names[..PROMPT].to_vec(), names[PROMPT..PROMPT + LATE].to_vec());

    // Made, and provisioned as far as they have an image.
    site.objects().make_namespace().await.unwrap();
    site.objects().make(&made).await.unwrap();
    let hosts = Api::<BareMetalHost>::namespaced(site.own.client.clone(), NAMESPACE);
    hosts.create(&PostParams::default(), &bare()).await.unwrap();
    let all_are = |states: &States, names: &[String], state: &str| {
        names.iter().all(|name| states.get(name).is_some_and(|now| now == state))
    };
    let runs = |machines: &SimulatedMachines, names: &[String]| {
        let mut wanted = machines.all.iter().filter(|seen| names.contains(&seen.name));
        wanted.all(|seen| seen.machine.is_on() && matches!(seen.disk.events().last(), Some(DiskEvent::System(_))))
    };
    site.until("made", BY_CHANCE, |states, machines| {
        all_are(states, &prompt, "provisioned") && all_are(states, &late, "available") && runs(machines, &prompt)
    })
    .await;

    // The others get theirs.
    let hosts = Api::<BareMetalHost>::namespaced(site.own.client.clone(), NAMESPACE);
    for (number, name) in late.iter().enumerate() {
        let patch = Patch::Merge(json!({ "spec": { "image": image(number) } }));
        hosts.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let with_image: Vec<String> = [prompt.clone(), late.clone()].concat();
    site.until("all provisioned", BY_CHANCE, |states, machines| {
        all_are(states, &with_image, "provisioned") && runs(machines, &with_image)
    })
    .await;
    let library = Api::<Image>::all(site.own.client.clone()).list(&ListParams::default()).await.unwrap();
    let digest = |number: usize| {
        let one = library.iter().find(|one| one.spec.url == image(number).url).unwrap();
        one.status.clone().unwrap_or_default().digest.unwrap()
    };
    let digests = [digest(0), digest(1)];
    assert_ne!(digests[0], digests[1]);
    let expected = |name: &String| {
        let number = prompt.iter().chain(&late).position(|it| it == name);
        let number = number.map(|number| if number < PROMPT { number } else { number - PROMPT });
        number.map(|number| installed(&digests[number % 2]))
    };
    for seen in &site.machines.all {
        match expected(&seen.name) {
            Some(expected) => {
                assert_eq!(done_to(seen), expected, "{} was to be written once, and started once", seen.name);
                assert!(rests(seen), "{}: {:?}", seen.name, seen.disk.events());
            }
            None => assert_eq!(seen.disk.content(), DiskContent::Former, "{}", seen.name),
        }
    }

    // Half of them lose their image, then all are deleted, whatever they are.
    let taken = prompt[..PROMPT / 2].to_vec();
    site.objects().take_images(&taken).await.unwrap();
    site.until("deprovisioned", BY_CHANCE, |states, _| all_are(states, &taken, "available")).await;
    let every: Vec<String> = names.iter().cloned().chain([BARE.to_owned()]).collect();
    // Not all at once: the last states are short.
    for some in every.chunks(BATCH) {
        site.objects().delete(some).await.unwrap();
        site.until("deleted", 1, |states, _| !some.iter().any(|name| states.contains_key(name))).await;
    }
    for seen in &site.machines.all {
        match expected(&seen.name) {
            Some(mut expected) => {
                expected.push(DiskEvent::Erase);
                assert_eq!(done_to(seen), expected, "{} was to be erased once more", seen.name);
                assert!(!seen.machine.is_on(), "{} is off before it is forgotten", seen.name);
            }
            None => {
                let touched =
                    seen.disk.events().iter().any(|event| !matches!(event, DiskEvent::System(DiskContent::Former)));
                assert!(!touched, "{}: {:?}", seen.name, seen.disk.events());
            }
        }
    }

    // Nothing is left that would hold something back.
    site.objects().delete_secrets(&made).await.unwrap();
    let client = site.own.client.clone();
    let left = async {
        loop {
            let all = ListParams::default();
            let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE).list(&all).await.unwrap();
            let intents = Api::<BootIntent>::namespaced(client.clone(), NAMESPACE).list(&all).await.unwrap();
            let data = Api::<HardwareData>::namespaced(client.clone(), NAMESPACE).list(&all).await.unwrap();
            if secrets.items.is_empty() && intents.items.is_empty() && data.items.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout_at(site.until, left).await.expect("Secrets, boot intents and HardwareData go with their hosts");
    let short_of: Vec<_> =
        STATES.iter().filter(|state| site.killed.get(**state).is_none_or(|met| *met < EACH)).collect();
    assert!(short_of.is_empty(), "not killed often enough in {short_of:?}: {:?}", site.killed);
    assert!(!site.own.log().contains("panicked"));
}

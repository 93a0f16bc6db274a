//! Addresses through the API that their users have: objects in, objects out.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::groups::ClaimMessage;
use super::*;
use crate::apiserver::ApiServer;
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

/// An appliance that gives addresses, and can be killed.
struct Site {
    client: Client,
    shutdown: CancellationToken,
    acting: CancellationToken,
    services: Vec<tokio::task::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.acting.cancel();
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        for (kind, rules) in rules() {
            api.add_admission(kind, rules);
        }
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let mut site =
            Self { client, acting: CancellationToken::new(), services: Vec::new(), shutdown, _folder: folder };
        site.act();
        site
    }

    /// Begins as a process that starts does.
    fn act(&mut self) {
        self.act_as(&self.client.clone());
    }

    fn act_as(&mut self, client: &Client) {
        self.acting = self.shutdown.child_token();
        let mut watches = Watches::default();
        let addresses = IpamLife::watching(&mut watches, true);
        tokio::spawn(watches.run(self.client.clone(), self.acting.clone()));
        let services = addresses.services(client, &self.acting);
        self.services = services.into_iter().map(|(_, run)| tokio::spawn(async { run.await.unwrap() })).collect();
    }

    /// Nobody acts any more: what was done is done.
    async fn rest(&mut self) {
        self.acting.cancel();
        for service in self.services.drain(..) {
            service.await.unwrap();
        }
    }

    fn api<K: groups::IpamObject>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn pool(&self, spec: Value) {
        let pool = json!({"apiVersion": "ipam.metal3.io/v1alpha1", "kind": "IPPool", "metadata": {"name": "pool"}, "spec": spec});
        self.api::<IPPool>().create(&PostParams::default(), &serde_json::from_value(pool).unwrap()).await.unwrap();
    }

    async fn claim(&self, name: &str) {
        self.claim_with(json!({"name": name})).await;
    }

    async fn claim_with(&self, metadata: Value) {
        let claim = json!({"metadata": metadata, "spec": {"pool": {"name": "pool"}}});
        self.api::<IPClaim>().create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    async fn contract_claim(&self, name: &str) {
        let claim = json!({"metadata": {"name": name}, "spec": {"poolRef":
            {"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "pool"}}});
        let claim: v1beta2::IPAddressClaim = serde_json::from_value(claim).unwrap();
        self.api().create(&PostParams::default(), &claim).await.unwrap();
    }

    async fn delete<K: groups::IpamObject>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn is_gone<K: groups::IpamObject>(&self, name: &str) -> bool {
        self.api::<K>().get_opt(name).await.unwrap().is_none()
    }

    async fn told(&self, name: &str) -> ClaimMessage {
        self.api().get_opt(name).await.unwrap().map(|claim| Metal3IpamGroup::told(&claim)).unwrap_or_default()
    }

    async fn contract_told(&self, name: &str) -> ClaimMessage {
        self.api().get_opt(name).await.unwrap().map(|claim| ClusterApiGroup::told(&claim)).unwrap_or_default()
    }

    async fn indexes(&self) -> Value {
        let pool = self.api::<IPPool>().get("pool").await.unwrap();
        json!(pool.status.unwrap_or_default().indexes)
    }

    async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(240), wait).await.is_err() {
            panic!("not in time: {what}; there is:\n{}", self.all().await);
        }
    }

    /// Every object there is, of whichever kind.
    async fn all(&self) -> String {
        let of =
            |value: Value| value["items"].as_array().into_iter().flatten().map(Value::to_string).collect::<Vec<_>>();
        let list = async |path: &str| {
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            of(self.client.request::<Value>(request).await.unwrap())
        };
        let mut all = list("/apis/ipam.metal3.io/v1alpha1/ippools").await;
        for path in ["ipam.metal3.io/v1alpha1/ipclaims", "ipam.metal3.io/v1alpha1/ipaddresses"] {
            all.extend(list(&format!("/apis/{path}")).await);
        }
        for path in ["ipaddressclaims", "ipaddresses"] {
            all.extend(list(&format!("/apis/ipam.cluster.x-k8s.io/v1beta2/{path}")).await);
        }
        all.join("\n")
    }

    /// Every address object's address, of both groups.
    async fn given(&self) -> Vec<String> {
        let metal3 = self.api::<IPAddress>().list(&ListParams::default()).await.unwrap();
        let contract = self.api::<v1beta2::IPAddress>().list(&ListParams::default()).await.unwrap();
        let metal3 = metal3.items.into_iter().map(|address| address.spec.address);
        metal3.chain(contract.items.into_iter().map(|address| address.spec.address)).collect()
    }
}

fn told(name: &str) -> ClaimMessage {
    ClaimMessage::Address(name.to_owned())
}

fn two_addresses() -> Value {
    json!({"namePrefix": "net", "prefix": 24, "gateway": "10.0.0.254", "dnsServers": ["10.0.0.253"],
        "pools": [{"start": "10.0.0.1", "end": "10.0.0.2"}]})
}

#[tokio::test]
async fn claims_of_both_groups_get_addresses_and_give_them_back() {
    let site = Site::new().await;
    site.pool(two_addresses()).await;
    site.claim_with(json!({"name": "a", "labels": {"rack": "7"}})).await;
    site.until("the first claim is answered", async || site.told("a").await == told("net-10-0-0-1")).await;
    site.contract_claim("b").await;
    site.until("the second claim is answered", async || site.contract_told("b").await == told("net-10-0-0-2")).await;
    site.until("the pool says so", async || site.indexes().await == json!({"a": "10.0.0.1", "b": "10.0.0.2"})).await;

    let address = site.api::<IPAddress>().get("net-10-0-0-1").await.unwrap();
    let claim = site.api::<IPClaim>().get("a").await.unwrap();
    let pool = site.api::<IPPool>().get("pool").await.unwrap();
    assert_eq!(claim.finalizers(), [metal3::FINALIZER_CLAIM]);
    assert_eq!(pool.finalizers(), [metal3::FINALIZER_POOL]);
    assert_eq!(address.finalizers(), [metal3::FINALIZER_ADDRESS]);
    assert_eq!(address.labels()["rack"], "7");
    let owners: Vec<_> =
        address.owner_references().iter().map(|owner| (owner.kind.as_str(), owner.uid.clone())).collect();
    assert_eq!(owners, [("IPPool", pool.uid().unwrap()), ("IPClaim", claim.uid().unwrap())]);
    assert_eq!(
        serde_json::to_value(&address.spec).unwrap(),
        json!({"address": "10.0.0.1", "prefix": 24, "gateway": "10.0.0.254", "dnsServers": ["10.0.0.253"],
            "claim": {"name": "a", "namespace": "default"}, "pool": {"name": "pool", "namespace": "default"}})
    );
    let address = site.api::<v1beta2::IPAddress>().get("net-10-0-0-2").await.unwrap();
    assert_eq!(address.finalizers(), [ipam::FINALIZER_ADDRESS]);
    assert_eq!(
        serde_json::to_value(&address.spec).unwrap(),
        json!({"address": "10.0.0.2", "prefix": 24, "gateway": "10.0.0.254", "claimRef": {"name": "b"},
            "poolRef": {"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "pool"}})
    );

    // A third one waits, and gets what is given back.
    site.claim("c").await;
    site.until("the third claim hears why", async || {
        site.told("c").await == ClaimMessage::Refused(String::new(), "Exhausted IP Pools".into())
    })
    .await;
    site.contract_claim("d").await;
    site.until("the fourth claim hears why", async || {
        site.contract_told("d").await == ClaimMessage::Refused("PoolExhausted".into(), "Exhausted IP Pools".into())
    })
    .await;
    site.delete::<IPClaim>("a").await;
    site.until("the third claim is answered", async || site.told("c").await == told("net-10-0-0-1")).await;
    assert!(site.is_gone::<IPClaim>("a").await);
    let third = site.api::<IPAddress>().get("net-10-0-0-1").await.unwrap();
    assert_eq!(third.spec.claim.name.as_deref(), Some("c"));
    site.delete::<v1beta2::IPAddressClaim>("b").await;
    site.until("the fourth claim is answered", async || site.contract_told("d").await == told("net-10-0-0-2")).await;
    site.until("the pool says so", async || site.indexes().await == json!({"c": "10.0.0.1", "d": "10.0.0.2"})).await;
}

#[tokio::test]
async fn a_claim_that_others_hold_keeps_its_address_until_they_let_go() {
    let site = Site::new().await;
    site.pool(json!({"namePrefix": "net", "pools": [{"start": "10.0.0.1", "end": "10.0.0.1"}]})).await;
    site.claim_with(json!({"name": "a", "finalizers": ["example.org/used"]})).await;
    site.until("it is answered", async || site.told("a").await == told("net-10-0-0-1")).await;
    site.delete::<IPClaim>("a").await;
    site.claim("b").await;
    site.until("the next one hears why", async || matches!(site.told("b").await, ClaimMessage::Refused(..))).await;
    assert!(!site.is_gone::<IPAddress>("net-10-0-0-1").await);
    let release = json!({"metadata": {"finalizers": [metal3::FINALIZER_CLAIM]}});
    site.api::<IPClaim>().patch("a", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    site.until("the next one is answered", async || site.told("b").await == told("net-10-0-0-1")).await;
}

#[tokio::test]
async fn a_pool_waits_for_its_addresses_and_gives_no_more() {
    let site = Site::new().await;
    site.pool(two_addresses()).await;
    site.claim("a").await;
    site.until("it is answered", async || site.told("a").await == told("net-10-0-0-1")).await;
    site.delete::<IPPool>("pool").await;
    site.claim("b").await;
    site.until("the next one hears why", async || {
        site.told("b").await == ClaimMessage::Refused(String::new(), "the IPPool pool is being deleted".into())
    })
    .await;
    assert!(!site.is_gone::<IPPool>("pool").await);
    site.delete::<IPClaim>("a").await;
    site.until("it is gone", async || site.is_gone::<IPPool>("pool").await).await;
    assert_eq!(site.given().await, [""; 0]);
    site.until("the other one hears of that", async || {
        site.told("b").await == ClaimMessage::Refused(String::new(), "there is no IPPool pool".into())
    })
    .await;
    // Another pool of that name is as good.
    site.pool(two_addresses()).await;
    site.until("the other one is answered", async || site.told("b").await == told("net-10-0-0-1")).await;
}

#[tokio::test]
async fn claims_end_without_their_pool() {
    let site = Site::new().await;
    site.pool(two_addresses()).await;
    site.claim("a").await;
    site.contract_claim("b").await;
    site.until("both are answered", async || site.given().await.len() == 2).await;
    site.until("both know", async || {
        matches!(
            (site.told("a").await, site.contract_told("b").await),
            (ClaimMessage::Address(_), ClaimMessage::Address(_))
        )
    })
    .await;
    // Somebody tears the pool away.
    site.delete::<IPPool>("pool").await;
    let release = json!({"metadata": {"finalizers": null}});
    site.api::<IPPool>().patch("pool", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    site.until("the pool is gone", async || site.is_gone::<IPPool>("pool").await).await;
    site.delete::<IPClaim>("a").await;
    site.delete::<v1beta2::IPAddressClaim>("b").await;
    site.until("all are gone", async || {
        site.is_gone::<IPClaim>("a").await
            && site.is_gone::<v1beta2::IPAddressClaim>("b").await
            && site.given().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_address_whose_claim_was_torn_away_is_given_back() {
    let mut site = Site::new().await;
    site.pool(json!({"namePrefix": "net", "pools": [{"start": "10.0.0.1", "end": "10.0.0.1"}]})).await;
    site.claim("a").await;
    site.until("it is answered", async || site.told("a").await == told("net-10-0-0-1")).await;
    site.rest().await;
    site.delete::<IPClaim>("a").await;
    let release = json!({"metadata": {"finalizers": null}});
    site.api::<IPClaim>().patch("a", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    // The garbage collector forgets owners that are gone.
    let address = site.api::<IPAddress>().get("net-10-0-0-1").await.unwrap();
    let owners: Vec<_> = address.owner_references().iter().filter(|owner| owner.kind == "IPPool").collect();
    let forget = json!({"metadata": {"ownerReferences": owners}});
    site.api::<IPAddress>().patch("net-10-0-0-1", &PatchParams::default(), &Patch::Merge(forget)).await.unwrap();
    site.act();
    site.claim("b").await;
    site.until("the next one is answered", async || site.told("b").await == told("net-10-0-0-1")).await;
}

#[tokio::test]
async fn what_is_kept_or_wished_for_is_given_and_other_namespaces_are_not_asked() {
    let site = Site::new().await;
    site.pool(json!({"namePrefix": "net", "pools": [{"subnet": "10.0.0.0/24"}],
        "preAllocations": {"kept": "10.0.0.1"}}))
        .await;
    site.claim("a").await;
    site.claim("kept").await;
    site.claim_with(json!({"name": "wish", "annotations": {"ipAddress": "10.0.0.77"}})).await;
    site.until("all are answered", async || {
        let all = [site.told("a").await, site.told("kept").await, site.told("wish").await];
        all == [told("net-10-0-0-2"), told("net-10-0-0-1"), told("net-10-0-0-77")]
    })
    .await;
    let abroad = json!({"metadata": {"name": "abroad"}, "spec": {"pool": {"name": "pool", "namespace": "other"}}});
    site.api::<IPClaim>().create(&PostParams::default(), &serde_json::from_value(abroad).unwrap()).await.unwrap();
    site.until("it hears why", async || {
        matches!(site.told("abroad").await, ClaimMessage::Refused(_, reason) if reason.contains("of its own namespace only"))
    })
    .await;
    site.delete::<IPClaim>("abroad").await;
    assert!(site.is_gone::<IPClaim>("abroad").await);
}

#[tokio::test]
async fn names_that_are_somebody_elses_are_passed_over() {
    let site = Site::new().await;
    for last in [1, 2] {
        let other = json!({"metadata": {"name": format!("net-10-0-0-{last}")}, "spec": {"address": "192.168.0.1",
            "pool": {"name": "other"}, "claim": {"name": "x"}}});
        site.api::<IPAddress>().create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    }
    site.pool(json!({"namePrefix": "net", "pools": [{"subnet": "10.0.0.0/24"}]})).await;
    site.contract_claim("a").await;
    site.claim("b").await;
    site.until("both are answered", async || {
        let mut both = [site.told("b").await, site.contract_told("a").await];
        both.sort_by_key(|told| format!("{told:?}"));
        both == [told("net-10-0-0-3"), told("net-10-0-0-4")]
    })
    .await;
}

#[tokio::test]
async fn a_pool_of_a_cluster_waits_for_it_and_rests_while_it_does() {
    let site = Site::new().await;
    let mut spec = two_addresses();
    spec["clusterName"] = "c".into();
    site.pool(spec).await;
    site.claim("a").await;
    site.until("it hears why", async || {
        site.told("a").await == ClaimMessage::Refused(String::new(), "the IPPool pool waits for its Cluster c".into())
    })
    .await;
    let cluster = json!({"metadata": {"name": "c"}, "spec": {"paused": true}});
    site.api::<Cluster>().create(&PostParams::default(), &serde_json::from_value(cluster).unwrap()).await.unwrap();
    site.claim("b").await;
    let run = json!({"spec": {"paused": false}});
    site.api::<Cluster>().patch("c", &PatchParams::default(), &Patch::Merge(run)).await.unwrap();
    site.until("both are answered", async || {
        [site.told("a").await, site.told("b").await] == [told("net-10-0-0-1"), told("net-10-0-0-2")]
    })
    .await;
    let pool = site.api::<IPPool>().get("pool").await.unwrap();
    assert_eq!(
        (pool.labels()["cluster.x-k8s.io/cluster-name"].as_str(), pool.owner_references()[0].kind.as_str()),
        ("c", "Cluster")
    );
}

/// A process that dies before it writes once more than so often.
fn mortal(client: &Client, writes: &Arc<AtomicI64>) -> Client {
    let (client, writes) = (client.clone(), writes.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, writes) = (client.clone(), writes.clone());
        async move {
            if request.method() != http::Method::GET && writes.fetch_sub(1, Ordering::SeqCst) <= 0 {
                std::future::pending::<()>().await;
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// Wherever a process ends, the next one finds what was begun: no address is lost, and none is another claim's.
#[tokio::test]
async fn no_two_claims_have_one_address_wherever_a_process_was_killed() {
    for lives in 0.. {
        let mut site = Site::new().await;
        site.pool(json!({"namePrefix": "net", "pools": [{"start": "10.0.0.1", "end": "10.0.0.4"}]})).await;
        site.claim("old").await;
        site.until("there is an answer", async || site.told("old").await == told("net-10-0-0-1")).await;
        site.until("it is known", async || site.indexes().await == json!({"old": "10.0.0.1"})).await;
        site.rest().await;
        site.delete::<IPClaim>("old").await;
        for claim in ["a", "b"] {
            site.claim(claim).await;
            site.contract_claim(claim).await;
        }
        let writes = Arc::new(AtomicI64::new(lives));
        site.act_as(&mortal(&site.client, &writes));
        let is_done = async || {
            let metal3 = [site.told("a").await, site.told("b").await];
            let contract = [site.contract_told("a").await, site.contract_told("b").await];
            let answered = |told: &ClaimMessage| matches!(told, ClaimMessage::Address(_));
            metal3.iter().chain(&contract).all(answered)
                && site.is_gone::<IPClaim>("old").await
                && site.indexes().await.as_object().is_some_and(|all| all.len() == 4)
        };
        site.until("it is dead or done", async || writes.load(Ordering::SeqCst) < 0 || is_done().await).await;
        let survived = writes.load(Ordering::SeqCst) >= 0;
        site.acting.cancel();
        let given = site.given().await;
        let distinct: BTreeSet<&String> = given.iter().collect();
        assert_eq!(given.len(), distinct.len(), "after {lives} writes: {given:?}");
        site.act();
        let is_done = async || {
            let metal3 = [site.told("a").await, site.told("b").await];
            let contract = [site.contract_told("a").await, site.contract_told("b").await];
            metal3.iter().chain(&contract).all(|told| matches!(told, ClaimMessage::Address(_)))
                && site.is_gone::<IPClaim>("old").await
                // What the killed one stored late is taken back.
                && site.given().await.len() == 4
        };
        site.until("everything is answered", is_done).await;
        let given = site.given().await;
        let distinct: BTreeSet<&String> = given.iter().collect();
        assert_eq!((given.len(), distinct.len()), (4, 4), "after {lives} writes: {given:?}");
        if survived {
            assert!(lives > 12, "it wrote less than it had to: {lives}");
            return;
        }
    }
}

/// As many as there are machines in a hall.
#[tokio::test]
async fn a_thousand_claims_have_a_thousand_addresses() {
    let site = Site::new().await;
    site.pool(json!({"namePrefix": "net", "pools": [{"subnet": "10.0.0.0/23"}, {"subnet": "fd00::/64"}]})).await;
    let claims = (0..1000).map(|number| (number, format!("claim-{number:04}")));
    futures::stream::StreamExt::for_each_concurrent(futures::stream::iter(claims), 20, async |(number, name)| {
        if number % 2 == 0 { site.claim(&name).await } else { site.contract_claim(&name).await }
    })
    .await;
    site.until("all are known of", async || site.indexes().await.as_object().is_some_and(|all| all.len() == 1000))
        .await;
    let given: BTreeSet<String> = site.given().await.into_iter().collect();
    assert_eq!(given.len(), 1000);
    // The lowest of each range, and none of the second before the first has no more.
    assert!(given.contains("10.0.0.1") && given.contains("10.0.1.255") && given.contains("fd00::1"));
    assert!(given.contains(&format!("fd00::{:x}", 1000 - 511)), "{:?}", given.last());
}

//! Tests of refused BMC logins: how many of them there are, whatever is written into Secrets, and who is held up by them.

use super::*;
use crate::config::Span;

/// A site whose machine has a Redfish BMC that locks nothing and counts what it refuses.
struct Counted {
    site: Site,
    service: Arc<RedfishSim>,
    port: u16,
}

impl Counted {
    async fn new() -> Self {
        let mut site = Site::idle().await;
        let (service, _) = site.redfish(RedfishOptions::default()).await;
        let port = site.bmc.rsplit(':').next().unwrap().parse().unwrap();
        // Nothing is tried again by itself while the test runs.
        let hosts = HostConfig {
            retry: Span(Duration::from_secs(3600)),
            power_poll: Span(Duration::from_millis(100)),
            ..HostConfig::default()
        };
        site.reconcile_with(hosts, BmcSettings { poll: Duration::from_millis(20), ..BmcSettings::default() }).await;
        Self { site, service, port }
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.site.client.clone(), namespace)
    }

    fn hosts(&self, namespace: &str) -> Api<BareMetalHost> {
        Api::namespaced(self.site.client.clone(), namespace)
    }

    /// A new password in the Secret `bmc` of the namespace.
    async fn write(&self, namespace: &str, password: &str) -> String {
        let patch = Patch::Merge(json!({ "stringData": { "password": password } }));
        let secret = self.secrets(namespace).patch("bmc", &PatchParams::default(), &patch).await.unwrap();
        secret.resource_version().unwrap()
    }

    /// Waits until the host has an error with the Secret's present version, or one of its address, and gives it.
    async fn fails(&self, namespace: &str, name: &str) -> String {
        let failed = async || {
            let version = self.secrets(namespace).get("bmc").await.unwrap().resource_version();
            let status = self.hosts(namespace).get(name).await.unwrap().status.unwrap_or_default();
            let taken = status.error_message.contains("is already that of");
            let tried = taken || status.tried_credentials.credentials_version == version;
            (tried && !status.error_message.is_empty()).then_some(status.error_message)
        };
        self.site.until("the BMC is not let in", async || failed().await.is_some()).await;
        failed().await.unwrap_or_default()
    }
}

#[tokio::test]
async fn a_namespace_gets_few_logins_refused_at_the_bmc_of_another() {
    let counted = Counted::new().await;
    let site = &counted.site;
    let mut owner = site.host();
    owner.spec.externally_provisioned = true;
    owner.spec.bmc.as_mut().unwrap().address = format!("{}/redfish/v1/Systems/1", site.bmc);
    site.create(&owner).await;
    let registered = async || !site.status().await.provisioning.id.is_empty();
    site.until("the owner is registered", registered).await;

    let metadata = ObjectMeta { name: Some("tenant".into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "guess" } });
    let secret = serde_json::from_value(secret).unwrap();
    counted.secrets("tenant").create(&PostParams::default(), &secret).await.unwrap();
    let port = counted.port;
    let spellings = [
        format!("redfish+http://127.0.0.1:{port}/redfish/v1/Systems/2"),
        format!("redfish+http://[::ffff:127.0.0.1]:{port}/redfish/v1/Systems/3"),
        format!("redfish+http://localhost:{port}/redfish/v1/Systems/4"),
        format!("redfish+http://[::ffff:127.0.0.1]:{port}/redfish/v1/systems/%31"),
    ];
    let mut errors = Vec::new();
    for (number, address) in spellings.iter().enumerate() {
        let (name, mut host) = (format!("probe-{number}"), site.host());
        host.metadata.name = Some(name.clone());
        host.spec.boot_mac_address = Some(format!("02:00:00:00:01:{number:02x}"));
        host.spec.bmc.as_mut().unwrap().address = address.clone();
        counted.hosts("tenant").create(&PostParams::default(), &host).await.unwrap();
        for round in 0..6 {
            counted.write("tenant", &format!("guess-{round}")).await;
            errors.push(counted.fails("tenant", &name).await);
        }
    }
    let refused = counted.service.refused_logins();
    assert!(
        errors
            .last()
            .unwrap()
            .ends_with("is already that of a BareMetalHost in another namespace: correct one of the two")
    );
    assert!((1..=2).contains(&refused), "{refused} logins were refused: {errors:#?}");
    let told = errors.iter().find(|error| error.contains("no login is tried there before")).expect("a visible reason");
    assert!(told.contains("another namespace") && !told.contains("rack"), "{told}");

    // The owner goes on, and with it one of its namespace that uses the same credentials.
    site.patch(json!({ "spec": { "online": true } })).await;
    site.until("the owner's machine is on", async || site.machine.is_on()).await;
    site.patch(json!({ "spec": { "online": false } })).await;
    site.until("the owner's machine is off", async || !site.machine.is_on()).await;
    assert_eq!(site.status().await.error_message, "");
}

#[tokio::test]
async fn a_corrected_password_is_tried_at_once_and_a_flood_of_them_is_not() {
    let counted = Counted::new().await;
    let mut host = counted.site.host();
    host.spec.externally_provisioned = true;
    counted.write("rack", "wrong").await;
    counted.site.create(&host).await;
    assert!(counted.fails("rack", "h").await.contains("wrong user name or password"));
    counted.write("rack", "secret").await;
    counted.site.until("it is let in", async || !counted.site.status().await.provisioning.id.is_empty()).await;
    // Nothing but looking at it is left to do: what fails from now on is a login.
    let is_on = async || counted.site.status().await.powered_on;
    counted.site.until("its machine is on", is_on).await;
    let before = counted.service.refused_logins();

    let mut last = String::new();
    for round in 0..20 {
        counted.write("rack", &format!("wrong-{round}")).await;
        last = counted.fails("rack", "h").await;
    }
    // The first of them and, however slow this computer is, one each ten seconds.
    let refused = counted.service.refused_logins() - before;
    assert!(refused <= 8, "{refused} logins were refused: {last}");
    // Credentials that were good are not held up by others.
    counted.write("rack", "secret").await;
    counted.site.until("it is let in again", async || counted.site.status().await.error_message.is_empty()).await;
}

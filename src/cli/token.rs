//! `slipway token`: tokens for people and programs, each a ServiceAccount in the namespace `slipway-system`, with bindings.
//!
//! Nothing but the account is kept: the token is signed, printed once and forgotten. What lists and revokes it are
//! ordinary API calls; it ends with its account.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::relative::from_now;
use super::client::{ClientSession, ServerArgs};
use super::common::ConfigFile;
use super::listing::ListingOutput;
use super::local;
use crate::apiserver::auth::{GROUP, accounts};
use crate::appliance;
use crate::config::{DEFAULT_PATH, Span};
use crate::log::escaped;
use crate::pki;

/// Namespace of the accounts.
const NAMESPACE: &str = crate::apiserver::PEOPLE;
/// Label of everything that belongs to a token; its value is the token's name.
const LABEL: &str = "slipway.dev/token";
/// Annotation of the account: when the token ends.
const EXPIRES: &str = "slipway.dev/token-expires";
/// Longest name: it is a label's value, and bindings have more behind it.
const NAME_MAX: usize = 50;
const DAY: u64 = 24 * 3600;
/// Short for the ClusterRole that may read `/metrics` and health, unless there is a ClusterRole of that name.
const MONITOR: (&str, &str) = ("monitor", "system:monitoring");

#[derive(clap::Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token and print it; it cannot be printed again
    ///
    /// Without --role and --group the token can only ask who it is and which kinds there are. The roles view, edit, admin,
    /// cluster-admin and monitor (/metrics and health, no object) are built in; `kubectl create clusterrole` makes others.
    #[command(after_help = "\
A token for Prometheus, for the appliance's metrics and health and nothing else:
  slipway token create prometheus --role monitor --ttl 365d > /etc/prometheus/slipway.token

A token that may only look at hosts:
  kubectl create clusterrole host-viewer --verb=get,list,watch --resource=baremetalhosts.metal3.io
  slipway token create dashboard --role host-viewer --ttl 30d -o kubeconfig > dashboard.kubeconfig")]
    Create {
        #[command(flatten)]
        server: At,
        /// Name of the token
        name: String,
        /// ClusterRole of the token; may be given more than once
        #[arg(long, value_name = "CLUSTERROLE")]
        role: Vec<String>,
        /// Grant the roles in this namespace only; may be given more than once
        #[arg(long = "in", value_name = "NAMESPACE")]
        within: Vec<String>,
        /// Group that the token belongs to, for bindings to groups; may be given more than once
        #[arg(long)]
        group: Vec<String>,
        /// How long the token is valid: 12h, 90d
        #[arg(long, default_value = "90d", value_parser = parse_ttl)]
        ttl: Duration,
        /// Output format
        #[arg(long, short, value_enum, default_value = "token")]
        output: Print,
        /// Endpoint for the kubeconfig [default: the first of api.names, else this appliance's address; with --kubeconfig the
        /// endpoint that stands there]
        #[arg(long = "server", value_name = "https://HOST:PORT")]
        endpoint: Option<String>,
    },
    /// List tokens, with their roles and when they expire
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        server: At,
        /// Output format
        #[arg(long, short, value_enum, default_value = "table")]
        output: ListingOutput,
    },
    /// Revoke a token at once
    #[command(visible_alias = "rm")]
    Revoke {
        #[command(flatten)]
        server: At,
        /// Name of the token
        name: String,
    },
}

/// Whose tokens.
#[derive(clap::Args)]
pub(super) struct At {
    #[command(flatten)]
    config: ConfigFile,
    /// Kubeconfig of a server, instead of the appliance on this box; where there is none, $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl At {
    /// The appliance on this box where there is one, unless another server is named; elsewhere whom $KUBECONFIG or
    /// ~/.kube/config name.
    async fn session(&self) -> anyhow::Result<ClientSession> {
        let config = self.config.config.clone();
        let server = match self.is_elsewhere() {
            true => ServerArgs::of_any(self.kubeconfig.clone(), config).in_context(self.context.clone()),
            false => ServerArgs::of(None, None, config),
        };
        server.connect().await
    }

    fn is_elsewhere(&self) -> bool {
        let config = &self.config.config;
        self.kubeconfig.is_some()
            || self.context.is_some()
            || (config.as_path() == Path::new(DEFAULT_PATH) && !config.exists())
    }

    /// A kubeconfig for the token.
    fn kubeconfig(
        &self,
        session: &ClientSession,
        made: &CreatedToken,
        endpoint: Option<&str>,
    ) -> anyhow::Result<String> {
        if self.is_elsewhere() {
            let endpoint = endpoint.unwrap_or(&session.endpoint);
            return Ok(pki::token_kubeconfig(endpoint, &session.ca_pem, &made.name, &made.token));
        }
        let config = self.config.load()?;
        let authority = local::in_data_folder(&config, || appliance::authority(&config))??;
        let endpoint = endpoint.map_or_else(|| appliance::endpoint(&config), str::to_owned);
        Ok(pki::token_kubeconfig(&endpoint, authority.ca_pem(), &made.name, &made.token))
    }
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub(super) enum Print {
    /// The token alone
    Token,
    /// A kubeconfig with the token, the CA and the endpoint
    Kubeconfig,
    Json,
    Yaml,
}

pub(super) fn run(command: TokenCommand) -> anyhow::Result<()> {
    local::block_on(async {
        match command {
            TokenCommand::Create { server, name, role, within, group, ttl, output, endpoint } => {
                let wanted = WantedToken { name, roles: role, within, groups: group, ttl };
                let session = server.session().await?;
                let made = create(&session.client, &wanted).await.map_err(|error| in_words(&session, error))?;
                let kubeconfig = |made: &CreatedToken| server.kubeconfig(&session, made, endpoint.as_deref());
                print(&made, output, kubeconfig)
            }
            TokenCommand::List { server, output } => {
                let session = server.session().await?;
                list(&session.client, output).await.map_err(|error| in_words(&session, error))
            }
            TokenCommand::Revoke { server, name } => {
                let session = server.session().await?;
                revoke(&session.client, &name).await.map_err(|error| in_words(&session, error))?;
                println!("token {name} revoked");
                Ok(())
            }
        }
    })
}

/// That there was no answer is said as for the commands of the client.
fn in_words(session: &ClientSession, error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(_)) | None => error,
        Some(unanswered) => anyhow::anyhow!("{}", session.unreachable(unanswered)),
    }
}

/// Seconds that a token may hold: the API server gives no more.
const LONGEST: u64 = 365 * DAY;

/// Reads `90d`, and whatever a configuration file takes.
fn parse_ttl(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let ttl = match days.map(|days| days.checked_mul(DAY)) {
        Some(seconds) => Duration::from_secs(seconds.ok_or("too long")?),
        None => {
            Span::try_from(text.to_owned())
                .map_err(|_| format!("{text:?} is not a length of time: write 12h or 90d"))?
                .0
        }
    };
    match ttl.as_secs() {
        ..600 => Err("a token is valid for at least 10m".into()),
        600..=LONGEST => Ok(ttl),
        _ => Err("a token is valid for at most 365d".into()),
    }
}

#[derive(Clone)]
struct WantedToken {
    name: String,
    roles: Vec<String>,
    within: Vec<String>,
    groups: Vec<String>,
    ttl: Duration,
}

#[derive(Serialize)]
struct CreatedToken {
    name: String,
    user: String,
    token: String,
    expires: Timestamp,
}

fn meta(name: String, token: &str) -> ObjectMeta {
    let labels = BTreeMap::from([(LABEL.to_owned(), token.to_owned())]);
    ObjectMeta { name: Some(name), labels: Some(labels), ..ObjectMeta::default() }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

async fn create(client: &Client, wanted: &WantedToken) -> anyhow::Result<CreatedToken> {
    let name = wanted.name.as_str();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty()
        || name.len() > NAME_MAX
        || !name.chars().all(plain)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        bail!("{name:?} is not a valid token name: use lower-case letters, digits and -, at most {NAME_MAX}");
    }
    if !wanted.within.is_empty() && wanted.roles.is_empty() {
        bail!("--in needs a role: add --role NAME");
    }
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let mut wanted = wanted.clone();
    for role in &mut wanted.roles {
        if roles.get_opt(role).await?.is_some() {
            continue;
        }
        if role.as_str() != MONITOR.0 {
            bail!("there is no ClusterRole named {role:?}; `slipway get clusterroles` lists them");
        }
        if !wanted.within.is_empty() {
            bail!("--in and the role monitor exclude each other: /metrics is in no namespace");
        }
        MONITOR.1.clone_into(role);
    }
    let wanted = &wanted;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for namespace in &wanted.within {
        namespaces.get(namespace).await.with_context(|| format!("--in {namespace}"))?;
    }
    let own = Namespace {
        metadata: ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    match namespaces.create(&PostParams::default(), &own).await {
        Err(error) if !is_code(&error, 409) => return Err(error).context(NAMESPACE),
        _ => {}
    }
    let expires = Timestamp::now() + wanted.ttl;
    let mut metadata = meta(name.to_owned(), name);
    let mut annotations = BTreeMap::from([(EXPIRES.to_owned(), expires.to_string())]);
    if !wanted.groups.is_empty() {
        annotations.insert(accounts::GROUPS.to_owned(), wanted.groups.join(","));
    }
    metadata.annotations = Some(annotations);
    let all: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let asked = ServiceAccount { metadata, ..ServiceAccount::default() };
    let account = match all.create(&PostParams::default(), &asked).await {
        Ok(account) => account,
        Err(error) if is_code(&error, 409) => {
            bail!("a token named {name} exists already; `slipway token revoke {name}` revokes it")
        }
        Err(error) => return Err(error.into()),
    };
    let made = match as_asked(&asked, &account) {
        Ok(()) => finish(client, &all, wanted).await,
        Err(error) => Err(error),
    };
    if made.is_err() {
        // Half a token helps nobody; the error that is told is the first one.
        revoke(client, name).await.ok();
        // What makes it a token may have been taken from it.
        let own = Preconditions { uid: account.uid(), resource_version: None };
        all.delete(name, &DeleteParams { preconditions: Some(own), ..DeleteParams::default() }).await.ok();
    }
    let token = made?;
    Ok(CreatedToken { name: name.to_owned(), user: accounts::user_name(NAMESPACE, name), token, expires })
}

/// Whether an object that was made says what was asked for: webhooks may change it on the way, and would give more than the
/// administrator gave.
fn as_asked(asked: &ServiceAccount, made: &ServiceAccount) -> anyhow::Result<()> {
    let group = |account: &ServiceAccount| account.annotations().get(accounts::GROUPS).cloned().unwrap_or_default();
    let (wanted, found) = (group(asked), group(made));
    if wanted != found {
        let shown = |groups: &str| if groups.is_empty() { "none".to_owned() } else { escaped(groups) };
        bail!(
            "the API server made the account with other groups than were asked for ({} instead of {}): a webhook changed them; no \
             token was made. `slipway get mutatingwebhookconfigurations` lists who may have",
            shown(&found),
            shown(&wanted)
        );
    }
    if asked.labels().get(LABEL) != made.labels().get(LABEL) {
        bail!("the API server made the account without the label {LABEL}: a webhook changed it; no token was made");
    }
    Ok(())
}

/// To whom a binding gives which role.
trait BindingKind: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned {
    fn gives(&self) -> (&RoleRef, &[Subject]);

    /// [`as_asked`], of a binding.
    fn is_as_asked(&self, asked: &Self) -> bool {
        fn who(subject: &Subject) -> (&str, Option<&str>, &str) {
            (&subject.kind, subject.namespace.as_deref(), &subject.name)
        }
        let ((role, to), (wanted, wanted_to)) = (self.gives(), asked.gives());
        (&role.kind, &role.name) == (&wanted.kind, &wanted.name) && to.iter().map(who).eq(wanted_to.iter().map(who))
    }
}

impl BindingKind for ClusterRoleBinding {
    fn gives(&self) -> (&RoleRef, &[Subject]) {
        (&self.role_ref, self.subjects.as_deref().unwrap_or_default())
    }
}

impl BindingKind for RoleBinding {
    fn gives(&self) -> (&RoleRef, &[Subject]) {
        (&self.role_ref, self.subjects.as_deref().unwrap_or_default())
    }
}

/// Makes a binding; one that came back other than it was asked for is taken away again.
async fn bind<K: BindingKind>(bindings: &Api<K>, asked: &K) -> anyhow::Result<()> {
    let made = bindings.create(&PostParams::default(), asked).await?;
    if made.is_as_asked(asked) {
        return Ok(());
    }
    // The error that is told is the first one.
    bindings.delete(&made.name_any(), &DeleteParams::default()).await.ok();
    bail!(
        "the API server made a binding of another role, or to others, than was asked for: a webhook changed it; no token was made"
    )
}

/// Binds the roles, then asks for the token.
async fn finish(client: &Client, all: &Api<ServiceAccount>, wanted: &WantedToken) -> anyhow::Result<String> {
    let name = wanted.name.as_str();
    for role in &wanted.roles {
        let metadata = meta(format!("slipway-token:{name}:{role}"), name);
        let role_ref = RoleRef { api_group: GROUP.into(), kind: "ClusterRole".into(), name: role.clone() };
        let subjects = Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: name.to_owned(),
            namespace: Some(NAMESPACE.into()),
            ..Subject::default()
        }]);
        if wanted.within.is_empty() {
            bind(&Api::all(client.clone()), &ClusterRoleBinding { metadata, role_ref, subjects }).await?;
            continue;
        }
        let asked = RoleBinding { metadata, role_ref, subjects };
        for namespace in &wanted.within {
            bind(&Api::namespaced(client.clone(), namespace), &asked).await?;
        }
    }
    let seconds = i64::try_from(wanted.ttl.as_secs())?;
    let spec = TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() };
    let answer = all
        .create_token_request(name, &PostParams::default(), &TokenRequest { spec, ..TokenRequest::default() })
        .await?;
    answer.status.map(|status| status.token).context("the appliance gave no token")
}

fn print(
    made: &CreatedToken,
    output: Print,
    kubeconfig: impl FnOnce(&CreatedToken) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    match output {
        Print::Token => println!("{}", made.token),
        Print::Json => println!("{}", serde_json::to_string_pretty(made)?),
        Print::Yaml => print!("{}", serde_saphyr::to_string(made)?),
        Print::Kubeconfig => print!("{}", kubeconfig(made)?),
    }
    eprintln!("token {} is valid until {:.0}; it is not shown again", made.name, made.expires);
    Ok(())
}

#[derive(Serialize)]
struct ListedToken {
    name: String,
    user: String,
    roles: Vec<String>,
    groups: Vec<String>,
    expires: Option<Timestamp>,
    created: Option<Timestamp>,
}

/// Every token, by what it may do.
fn listed(all: Vec<ServiceAccount>, everywhere: &[ClusterRoleBinding], within: &[RoleBinding]) -> Vec<ListedToken> {
    all.into_iter()
        .map(|account| {
            let name = account.name_any();
            let mine = |meta: &ObjectMeta| meta.labels.as_ref().and_then(|labels| labels.get(LABEL)) == Some(&name);
            let of_cluster = everywhere.iter().filter(|one| mine(&one.metadata)).map(|one| one.role_ref.name.clone());
            let of_namespaces = within.iter().filter(|one| mine(&one.metadata)).map(|one| {
                format!("{} in {}", one.role_ref.name, one.metadata.namespace.as_deref().unwrap_or_default())
            });
            let annotation = |key: &str| account.annotations().get(key).map(String::as_str).unwrap_or_default();
            let groups = annotation(accounts::GROUPS).split(',').filter(|group| !group.is_empty());
            ListedToken {
                roles: of_cluster.chain(of_namespaces).collect(),
                groups: groups.map(str::to_owned).collect(),
                expires: annotation(EXPIRES).parse().ok(),
                created: account.metadata.creation_timestamp.as_ref().map(|time| time.0),
                user: accounts::user_name(NAMESPACE, &name),
                name,
            }
        })
        .collect()
}

async fn list(client: &Client, output: ListingOutput) -> anyhow::Result<()> {
    let params = ListParams::default().labels(LABEL);
    let all = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE).list(&params).await?;
    let everywhere = Api::<ClusterRoleBinding>::all(client.clone()).list(&params).await?;
    let within = Api::<RoleBinding>::all(client.clone()).list(&params).await?;
    let tokens = listed(all.items, &everywhere.items, &within.items);
    output.print(&tokens, || {
        let now = Timestamp::now();
        println!("{:<24} {:<32} {:<20} EXPIRES", "NAME", "ROLES", "GROUPS");
        // Whoever may label a binding says what stands here.
        let shown = |list: &[String]| if list.is_empty() { "<none>".to_owned() } else { escaped(&list.join(", ")) };
        for token in &tokens {
            let expires = match token.expires {
                Some(end) if end <= now => format!("expired {}", from_now(end, now)),
                Some(end) => from_now(end, now),
                None => "<unknown>".to_owned(),
            };
            println!("{:<24} {:<32} {:<20} {expires}", escaped(&token.name), shown(&token.roles), shown(&token.groups));
        }
    })
}

/// The account first: with it the token ends. Then what is left of it.
async fn revoke(client: &Client, name: &str) -> anyhow::Result<()> {
    let params = DeleteParams::default();
    let all: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let account = all.get_opt(name).await?.filter(|account| account.labels().contains_key(LABEL));
    if account.is_none() {
        bail!("there is no token named {name:?}; `slipway token list` lists them");
    }
    all.delete(name, &params).await?;
    let mine = ListParams::default().labels(&format!("{LABEL}={name}"));
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    for binding in bindings.list(&mine).await? {
        bindings.delete(&binding.name_any(), &params).await?;
    }
    for binding in Api::<RoleBinding>::all(client.clone()).list(&mine).await? {
        let namespace = binding.namespace().unwrap_or_default();
        Api::<RoleBinding>::namespaced(client.clone(), &namespace).delete(&binding.name_any(), &params).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_webhook_made_of_an_account_or_a_binding_is_no_token() {
        let account = |groups: Option<&str>, label: &str| {
            let mut metadata = meta("a".into(), label);
            metadata.annotations =
                groups.map(|groups| BTreeMap::from([(accounts::GROUPS.to_owned(), groups.to_owned())]));
            ServiceAccount { metadata, ..ServiceAccount::default() }
        };
        for (asked, made, wanted) in [
            (None, None, ""),
            (Some("ops,night"), Some("ops,night"), ""),
            (None, Some("system:masters"), "(system:masters instead of none)"),
            (Some("ops"), Some("ops,system:masters"), "(ops,system:masters instead of ops)"),
            (Some("ops"), None, "(none instead of ops)"),
        ] {
            let found = as_asked(&account(asked, "a"), &account(made, "a"));
            let found = found.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(found.contains(wanted) && found.is_empty() == wanted.is_empty(), "{found}");
        }
        assert!(as_asked(&account(None, "a"), &account(None, "b")).is_err());
        let role = |name: &str| RoleRef { api_group: GROUP.into(), kind: "ClusterRole".into(), name: name.into() };
        let subjects =
            |name: &str| Some(vec![Subject { kind: "ServiceAccount".into(), name: name.into(), ..Subject::default() }]);
        let binding = |role: &RoleRef, subjects: &Option<Vec<Subject>>| RoleBinding {
            role_ref: role.clone(),
            subjects: subjects.clone(),
            ..RoleBinding::default()
        };
        let (view, admin, me, other) = (role("view"), role("admin"), subjects("a"), subjects("b"));
        assert!(binding(&view, &me).is_as_asked(&binding(&view, &me)));
        for (role, subjects) in [(&admin, &me), (&view, &other), (&view, &None)] {
            assert!(!binding(role, subjects).is_as_asked(&binding(&view, &me)));
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in
            [("90d", Some(90 * DAY)), ("12h", Some(12 * 3600)), ("10m", Some(600)), ("365d", Some(LONGEST))]
        {
            assert_eq!(parse_ttl(text).ok().map(|ttl| ttl.as_secs()), seconds, "{text}");
        }
        for bad in ["", "5m", "0d", "-1d", "99999999999999999999d", "900000d", "366d", "soon"] {
            assert!(parse_ttl(bad).is_err(), "{bad}");
        }
    }
}

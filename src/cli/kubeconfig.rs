//! `slipway kubeconfig`: makes a client certificate, and prints a kubeconfig with it or merges it into one that is there. For a
//! cluster that was made it prints the one that is kept for it.

mod cluster;
mod merge;
mod target;

use std::path::PathBuf;

use jiff::Timestamp;

use self::merge::KubeconfigEntry;
use self::target::KubeconfigTarget;
use super::client::ServerArgs;
use super::common::{ConfigFile, print_text};
use super::local::in_data_folder;
use crate::appliance;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sudo slipway kubeconfig --merge
  sudo slipway kubeconfig --server https://slipway.example:8443 > slipway.kubeconfig
  sudo slipway kubeconfig --revoke-all --merge
  sudo slipway kubeconfig --cluster edge -n rack > edge.kubeconfig")]
pub(super) struct KubeconfigArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Endpoint for the kubeconfig [default: the first of api.names, else this appliance's address]
    #[arg(long, value_name = "https://HOST:PORT")]
    server: Option<String>,
    /// Revoke every administrator's certificate made before; open connections that use one end within seconds
    #[arg(long)]
    revoke_all: bool,
    /// Put it into this kubeconfig instead, beside what is there [default: $KUBECONFIG, else ~/.kube/config]
    ///
    /// Other clusters, users and contexts stay; the entries of an earlier call are replaced. The file is written whole or not at
    /// all, for its owner alone (mode 0600), without a backup and without the comments that it had; a missing one is made.
    /// Under sudo, ~ is the home of who called sudo. Root writes with the rights of the file's owner.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    merge: Option<Option<PathBuf>>,
    /// Name for cluster and context in the file; the user is NAME-admin [default: slipway]
    #[arg(long, value_name = "NAME", requires = "merge")]
    context: Option<String>,
    /// Make it the current context; without this it is only where the file has none
    #[arg(long, requires = "merge")]
    set_current: bool,
    /// Print the kubeconfig of this cluster instead of the appliance's own
    #[arg(long, value_name = "NAME", conflicts_with_all = ["server", "revoke_all", "merge"])]
    cluster: Option<String>,
    /// Namespace of the cluster
    #[arg(long, short, value_name = "NAME", default_value = "default", requires = "cluster")]
    namespace: String,
    /// Ask the server of this kubeconfig for it [default: --config, $KUBECONFIG, ~/.kube/config, or the appliance on this box]
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
}

pub(super) fn run(options: &KubeconfigArgs) -> anyhow::Result<()> {
    if let Some(name) = &options.cluster {
        let server = ServerArgs::of_any(options.kubeconfig.clone(), options.config.config.clone());
        return print_text(&cluster::kubeconfig(&server, &options.namespace, name)?);
    }
    let config = options.config.load()?;
    let made =
        || in_data_folder(&config, || appliance::kubeconfig(&config, options.server.as_deref(), options.revoke_all))?;
    match &options.merge {
        None => print!("{}", made()?),
        Some(file) => {
            let endpoint = options.server.clone().unwrap_or_else(|| appliance::endpoint(&config));
            let target = KubeconfigTarget::find(file.as_deref())?;
            let name = options.context.as_deref().unwrap_or(merge::DEFAULT_NAME);
            let place = KubeconfigEntry {
                name,
                endpoint: &endpoint,
                chosen: options.context.is_some(),
                set_current: options.set_current,
            };
            // Whatever hinders shows before a certificate is made, or all others are revoked.
            target.as_owner(|| place.free_in(&target.read()?))??;
            let made = made()?;
            let (file, current) = target.as_owner(|| target.update(|known| place.put(known, &made)))??;
            let file = file.display();
            match current == name {
                true => eprintln!("{file}: the current context is {name}"),
                false => eprintln!(
                    "{file}: has the context {name}; the current one stays {current}. Use it with --context {name}"
                ),
            }
        }
    }
    if options.revoke_all {
        eprintln!("every administrator's certificate that was made before has been revoked");
    }
    let ends = Timestamp::now() + config.api.admin_certificate.0;
    eprintln!("the certificate holds until {ends:.0}; `slipway kubeconfig` makes another");
    Ok(())
}

//! `slipway crds`: prints the CustomResourceDefinitions, and the RBAC rules that controllers need.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;

use super::common::print_text;
use crate::modules;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  slipway crds | kubectl apply --server-side -f -
  slipway crds --rbac | kubectl apply -f -
  slipway crds --output-dir crds")]
pub(super) struct CrdsArgs {
    /// Write one file for each definition into this folder, named <group>_<plural>.yaml
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Print instead the RBAC roles and bindings that the user "slipway" of engine.kubeconfig needs
    #[arg(long, conflicts_with = "output_dir")]
    rbac: bool,
}

pub(super) fn run(options: &CrdsArgs) -> anyhow::Result<()> {
    if options.rbac {
        return print_text(&modules::rbac());
    }
    let crds = modules::acted_on().into_iter().map(|kind| kind.crd);
    let Some(folder) = &options.output_dir else {
        let mut all = String::new();
        for crd in crds {
            write!(all, "---\n{}", yaml(&crd)?)?;
        }
        return print_text(&all);
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for crd in crds {
        let file = folder.join(format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural));
        std::fs::write(&file, yaml(&crd)?).with_context(|| file.display().to_string())?;
        println!("{}", file.display());
    }
    Ok(())
}

fn yaml(crd: &impl serde::Serialize) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(crd)?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

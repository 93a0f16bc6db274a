//! Module selection: which kernel modules go in, and what they need.

use std::collections::{BTreeMap, BTreeSet};

use super::elf::{NotElf, modinfo};

/// Paths below `kernel/` of what goes in: a folder with all in it, or one module. What a kernel does not have is
/// passed over: the list serves several versions.
const INCLUDED: &[&str] = &[
    // Network cards of servers, edge machines and hypervisors.
    "drivers/net/bonding/",
    "drivers/net/ethernet/amazon/",
    "drivers/net/ethernet/amd/",
    "drivers/net/ethernet/aquantia/",
    "drivers/net/ethernet/atheros/",
    "drivers/net/ethernet/broadcom/",
    "drivers/net/ethernet/brocade/",
    "drivers/net/ethernet/cavium/",
    "drivers/net/ethernet/chelsio/",
    "drivers/net/ethernet/cisco/",
    "drivers/net/ethernet/emulex/",
    "drivers/net/ethernet/fungible/",
    "drivers/net/ethernet/google/",
    "drivers/net/ethernet/huawei/",
    "drivers/net/ethernet/intel/",
    "drivers/net/ethernet/jme",
    "drivers/net/ethernet/marvell/",
    "drivers/net/ethernet/mellanox/",
    "drivers/net/ethernet/meta/",
    "drivers/net/ethernet/microsoft/",
    "drivers/net/ethernet/myricom/",
    "drivers/net/ethernet/netronome/",
    "drivers/net/ethernet/nvidia/",
    "drivers/net/ethernet/pensando/",
    "drivers/net/ethernet/qlogic/",
    "drivers/net/ethernet/realtek/",
    "drivers/net/ethernet/sfc/",
    "drivers/net/ethernet/stmicro/",
    "drivers/net/ethernet/sun/niu",
    "drivers/net/ethernet/tehuti/",
    "drivers/net/ethernet/wangxun/",
    "drivers/net/hyperv/",
    "drivers/net/usb/asix",
    "drivers/net/usb/ax88179_178a",
    "drivers/net/usb/r8152",
    "drivers/net/virtio_net",
    "drivers/net/vmxnet3/",
    "net/8021q/",
    // Disks and their controllers.
    "drivers/ata/",
    "drivers/block/virtio_blk",
    "drivers/message/fusion/mptsas",
    "drivers/message/fusion/mptspi",
    "drivers/mmc/core/mmc_block",
    "drivers/mmc/host/sdhci-acpi",
    "drivers/mmc/host/sdhci-pci",
    "drivers/nvme/host/nvme",
    "drivers/pci/controller/pci-hyperv",
    "drivers/pci/controller/vmd",
    "drivers/scsi/3w-9xxx",
    "drivers/scsi/3w-sas",
    "drivers/scsi/aacraid/",
    "drivers/scsi/aic94xx/",
    "drivers/scsi/am53c974",
    "drivers/scsi/arcmsr/",
    "drivers/scsi/BusLogic",
    "drivers/scsi/esas2r/",
    "drivers/scsi/hpsa",
    "drivers/scsi/hptiop",
    "drivers/scsi/hv_storvsc",
    "drivers/scsi/ipr",
    "drivers/scsi/ips",
    "drivers/scsi/isci/",
    "drivers/scsi/lpfc/",
    "drivers/scsi/megaraid/megaraid_mbox",
    "drivers/scsi/megaraid/megaraid_sas",
    "drivers/scsi/mpi3mr/",
    "drivers/scsi/mpt3sas/",
    "drivers/scsi/mvsas/",
    "drivers/scsi/mvumi",
    "drivers/scsi/pm8001/",
    "drivers/scsi/pmcraid",
    "drivers/scsi/qla2xxx/qla2xxx",
    "drivers/scsi/sd_mod",
    "drivers/scsi/sg",
    "drivers/scsi/smartpqi/",
    "drivers/scsi/sr_mod",
    "drivers/scsi/stex",
    "drivers/scsi/sym53c8xx_2/",
    "drivers/scsi/virtio_scsi",
    "drivers/scsi/vmw_pvscsi",
    // Buses that the above hang on.
    "drivers/hv/hv_vmbus",
    "drivers/virtio/virtio_mmio",
    "drivers/virtio/virtio_pci",
    // Virtual media of BMCs.
    "drivers/usb/host/ehci-pci",
    "drivers/usb/host/ohci-pci",
    "drivers/usb/host/uhci-hcd",
    "drivers/usb/host/xhci-pci",
    "drivers/usb/storage/uas",
    "drivers/usb/storage/usb-storage",
    "fs/isofs/",
    // File systems that an installed system's kernel is read from.
    "fs/ext4/",
    "fs/fat/vfat",
    "fs/nls/nls_ascii",
    "fs/nls/nls_cp437",
    "fs/xfs/",
    // The BMC from inside, firmware variables, randomness.
    "drivers/char/hw_random/amd-rng",
    "drivers/char/hw_random/intel-rng",
    "drivers/char/hw_random/virtio-rng",
    "drivers/char/ipmi/ipmi_devintf",
    "drivers/char/ipmi/ipmi_si",
    "drivers/char/ipmi/ipmi_ssif",
    "fs/efivarfs/",
];

/// What does not go in, though its folder does: switch chips, offloads that are no network card, parallel ATA.
const EXCLUDED: &[&str] = &[
    "drivers/ata/pata_",
    "drivers/net/ethernet/chelsio/cxgb/",
    "drivers/net/ethernet/chelsio/inline_crypto/",
    "drivers/net/ethernet/marvell/mvpp2/",
    "drivers/net/ethernet/marvell/octeon",
    "drivers/net/ethernet/marvell/prestera/",
    "drivers/net/ethernet/mellanox/mlxsw/",
];

/// What a module says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelModule {
    /// Path inside the package.
    pub path: String,
    /// Modules that must be loaded first, by name.
    pub depends: Vec<String>,
    /// Modules or aliases that should be loaded first, if there are any.
    pub before: Vec<String>,
    /// Patterns of devices and other things it serves.
    pub aliases: Vec<String>,
    /// Firmware files it may ask for.
    pub firmware: Vec<String>,
}

impl KernelModule {
    /// Reads the module file at this path inside the package.
    pub fn read(path: &str, file: &[u8]) -> Result<Self, NotElf> {
        let mut module = Self { path: path.into(), ..Self::default() };
        for (key, value) in modinfo(file)? {
            match key.as_str() {
                "depends" => module.depends.extend(value.split(',').filter(|name| !name.is_empty()).map(canonical)),
                "alias" => module.aliases.push(value),
                "firmware" => module.firmware.push(value),
                "softdep" => {
                    let words = value.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
                    module.before.extend(words.take_while(|word| *word != "post:").map(str::to_owned));
                }
                _ => {}
            }
        }
        Ok(module)
    }
}

/// A module needs one that the package does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("module {module} needs {needs}, which the kernel package does not have")]
pub struct MissingModule {
    module: String,
    needs: String,
}

/// The selection: for each module what is to be loaded before it, in order.
pub type ModuleSelection = BTreeMap<String, Vec<String>>;

/// The name a module has in the kernel: file name without suffix, hyphens as underscores.
pub fn module_name(path: &str) -> String {
    let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
    canonical(file.strip_suffix(".ko").unwrap_or(file))
}

fn canonical(name: &str) -> String {
    name.trim().replace('-', "_")
}

/// Whether the list has a module. `path` is the one below `lib/modules/VERSION/kernel/`.
fn is_listed(path: &str) -> bool {
    let stem = path.strip_suffix(".ko").unwrap_or(path);
    INCLUDED.iter().any(|entry| if entry.ends_with('/') { stem.starts_with(entry) } else { stem == *entry })
        && !EXCLUDED.iter().any(|entry| stem.starts_with(entry))
}

/// Selects the listed modules and, transitively, what they need. `builtin` are the names of what is part of the kernel.
pub fn select(
    modules: &BTreeMap<String, KernelModule>,
    builtin: &BTreeSet<String>,
) -> Result<ModuleSelection, MissingModule> {
    let mut names_by_alias: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, module) in modules {
        for alias in &module.aliases {
            let first = names_by_alias.entry(alias).or_insert(name);
            // Of several that give the same algorithm, the one that runs on every processor.
            if name.contains("generic") {
                *first = name;
            }
        }
    }
    let graph = Graph { modules, builtin, names_by_alias };
    let mut selection = ModuleSelection::new();
    let mut wanted: Vec<&str> = modules
        .iter()
        .filter(|(_, module)| module.path.split_once("/kernel/").is_some_and(|(_, path)| is_listed(path)))
        .map(|(name, _)| name.as_str())
        .collect();
    while let Some(name) = wanted.pop() {
        if selection.contains_key(name) {
            continue;
        }
        let mut order = Vec::new();
        graph.visit(name, &mut BTreeSet::new(), &mut order)?;
        order.pop();
        wanted.extend(order.iter().copied());
        selection.insert(name.to_owned(), order.into_iter().map(str::to_owned).collect());
    }
    Ok(selection)
}

struct Graph<'a> {
    modules: &'a BTreeMap<String, KernelModule>,
    builtin: &'a BTreeSet<String>,
    names_by_alias: BTreeMap<&'a str, &'a str>,
}

impl<'a> Graph<'a> {
    /// Appends what `name` needs, then `name`, each once. A circle among soft dependencies ends where it closes.
    fn visit(
        &self,
        name: &'a str,
        seen: &mut BTreeSet<&'a str>,
        order: &mut Vec<&'a str>,
    ) -> Result<(), MissingModule> {
        if !seen.insert(name) {
            return Ok(());
        }
        let Some(module) = self.modules.get(name) else { return Ok(()) };
        for soft in &module.before {
            let by_name = self.modules.get_key_value(&canonical(soft)).map(|(name, _)| name.as_str());
            if let Some(found) = by_name.or_else(|| self.names_by_alias.get(soft.as_str()).copied()) {
                self.visit(found, seen, order)?;
            }
        }
        for needs in &module.depends {
            match self.modules.get_key_value(needs) {
                Some((needs, _)) => self.visit(needs, seen, order)?,
                None if self.builtin.contains(needs) => {}
                None => return Err(MissingModule { module: name.into(), needs: needs.clone() }),
            }
        }
        order.push(name);
        Ok(())
    }
}

/// `modules.dep` of a selection.
pub fn dependencies_file(selection: &ModuleSelection) -> String {
    selection.iter().fold(String::new(), |mut text, (name, before)| {
        text.push_str(name);
        text.push(':');
        for module in before {
            text.push(' ');
            text.push_str(module);
        }
        text.push('\n');
        text
    })
}

/// `modules.alias` of a selection.
pub fn aliases_file(selection: &ModuleSelection, modules: &BTreeMap<String, KernelModule>) -> String {
    let mut lines: Vec<String> = selection
        .keys()
        .filter_map(|name| modules.get(name).map(|module| (name, module)))
        .flat_map(|(name, module)| module.aliases.iter().map(move |alias| format!("alias {alias} {name}\n")))
        // An alias with a space in it could not be told from the name.
        .filter(|line| line.split(' ').count() == 3)
        .collect();
    lines.sort();
    lines.dedup();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ramdisk::elf::tests::sample;

    fn modules(list: &[(&str, &str)]) -> BTreeMap<String, KernelModule> {
        list.iter()
            .map(|(path, info)| {
                let path = format!("lib/modules/1/kernel/{path}");
                let module = KernelModule::read(&path, &sample(info, false)).expect("module");
                (module_name(&path), module)
            })
            .collect()
    }

    #[test]
    fn the_listed_modules_and_all_they_need_in_order() {
        let modules = modules(&[
            (
                "drivers/net/ethernet/broadcom/bnx2x/bnx2x.ko",
                "depends=mdio,libcrc32c,ptp\nalias=pci:v1*\nalias=pci:v0*",
            ),
            ("drivers/net/mdio.ko", "depends="),
            ("lib/libcrc32c.ko", "depends=\nsoftdep=pre: crypto-crc32c post: other"),
            ("crypto/crc32c_generic.ko", "alias=crypto-crc32c\nalias=crc32c"),
            ("arch/x86/crypto/crc32c-intel.ko", "alias=crypto-crc32c"),
            ("drivers/net/ethernet/mellanox/mlxsw/mlxsw_core.ko", "depends="),
            ("drivers/nvme/host/nvme.ko", "depends=nvme-core"),
            ("drivers/nvme/host/nvme-core.ko", "depends=t10_pi\nsoftdep=pre: nvme"),
            ("drivers/nvme/host/nvme-tcp.ko", "depends=nvme-core"),
            ("block/t10-pi.ko", ""),
            ("drivers/gpu/big.ko", ""),
        ]);
        let builtin = BTreeSet::from(["ptp".to_owned()]);
        let selection = select(&modules, &builtin).expect("selected");
        insta::assert_snapshot!(dependencies_file(&selection), @r"
        bnx2x: mdio crc32c_generic libcrc32c
        crc32c_generic:
        libcrc32c: crc32c_generic
        mdio:
        nvme: t10_pi nvme_core
        nvme_core: nvme t10_pi
        t10_pi:
        ");
        insta::assert_snapshot!(aliases_file(&selection, &modules), @r"
        alias crc32c crc32c_generic
        alias crypto-crc32c crc32c_generic
        alias pci:v0* bnx2x
        alias pci:v1* bnx2x
        ");
        let missing = select(&modules, &BTreeSet::new()).expect_err("missing").to_string();
        assert_eq!(missing, "module bnx2x needs ptp, which the kernel package does not have");
    }

    #[test]
    fn names_are_the_kernels() {
        assert_eq!(module_name("a/b/virtio-rng.ko"), "virtio_rng");
        assert!(is_listed("drivers/ata/ahci.ko") && !is_listed("drivers/ata/pata_via.ko"));
        assert!(is_listed("drivers/scsi/sg.ko") && !is_listed("drivers/scsi/sgi.ko"));
    }
}

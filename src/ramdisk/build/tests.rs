//! Tests of ramdisk builds from made-up kernel packages.

use super::*;
use crate::ramdisk::elf::tests::sample;
use crate::ramdisk::package::tests::{deb, pack as packed};

fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 4096];
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image
}

fn files(config: &str) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("boot/vmlinuz-6.1-test", bzimage()),
        ("boot/config-6.1-test", config.as_bytes().to_vec()),
        ("lib/modules/6.1-test/modules.builtin", b"kernel/net/ptp.ko\n".to_vec()),
        (
            "lib/modules/6.1-test/kernel/drivers/net/virtio_net.ko",
            sample(
                "depends=failover,ptp\nalias=virtio:d00000001v*\nfirmware=a/fw.bin\nfirmware=../../etc/passwd",
                false,
            ),
        ),
        ("lib/modules/6.1-test/kernel/net/failover.ko.xz", packed(&sample("depends=", false), ".xz")),
        ("lib/modules/6.1-test/kernel/sound/snd.ko", sample("depends=", false)),
    ]
}

struct Setup {
    folder: tempfile::TempDir,
    options: RamdiskOptions,
}

fn setup(files: &[(&str, Vec<u8>)]) -> Setup {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("linux.deb"), deb(files, ".xz")).expect("written");
    fs::write(at("slipway"), sample("", false)).expect("written");
    fs::create_dir_all(at("ipxe")).expect("made");
    fs::write(at("ipxe/snponly.efi"), b"efi").expect("written");
    fs::create_dir_all(at("firmware/a")).expect("made");
    fs::write(at("firmware/a/fw.bin.zst"), packed(b"blob", ".zst")).expect("written");
    let options = RamdiskOptions {
        kernel_package: at("linux.deb"),
        out: at("boot"),
        executable: at("slipway"),
        ipxe_dir: Some(at("ipxe")),
        grub: Some(at("gcdx64.efi")),
        isolinux: None,
        firmware_dir: Some(at("firmware")),
        level: BEST_LEVEL,
    };
    Setup { folder, options }
}

fn unpack(path: &Path, compression: &str) -> Vec<u8> {
    let suffix = match compression {
        "zstd" => "zst",
        "gzip" => "gz",
        other => other,
    };
    let mut data = Vec::new();
    let mut reader = decompress(File::open(path).expect("open"), suffix).expect("reader").expect("known");
    reader.read_to_end(&mut data).expect("unpacked");
    data
}

/// Paths of a newc archive, and the data of each.
fn listing(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let field = |index: usize| {
            let text = std::str::from_utf8(&bytes[6 + 8 * index..14 + 8 * index]).expect("hex");
            usize::from_str_radix(text, 16).expect("hex")
        };
        let (size, name) = (field(6), field(11));
        let path = String::from_utf8(bytes[110..110 + name - 1].to_vec()).expect("name");
        if path == "TRAILER!!!" {
            return found;
        }
        let start = (110 + name).next_multiple_of(4);
        found.push((path, bytes[start..start + size].to_vec()));
        bytes = &bytes[(start + size).next_multiple_of(4)..];
    }
}

#[test]
fn a_ramdisk_has_the_agent_the_modules_and_a_manifest_and_is_reproducible() {
    for (config, compression) in
        [("CONFIG_RD_ZSTD=y\nCONFIG_RD_XZ=y", "zstd"), ("CONFIG_RD_XZ=y", "xz"), ("CONFIG_RD_GZIP=y", "gzip")]
    {
        let setup = setup(&files(config));
        let mut seen = Vec::new();
        let summary = build(&setup.options, &mut |progress| seen.push(progress))
            .and_then(|built| built.write(&setup.options.out))
            .expect("built");
        assert_eq!((summary.kernel_version.as_str(), summary.compression.as_str()), ("6.1-test", compression));
        assert_eq!(summary.modules, ["failover", "virtio_net"]);
        assert_eq!(summary.firmware, ["a/fw.bin"]);
        assert_eq!(summary.files.keys().collect::<Vec<_>>(), ["initrd", "snponly.efi", "vmlinuz"]);
        assert!(
            [BuildPhase::Reading, BuildPhase::Extracting, BuildPhase::Compressing]
                .iter()
                .all(|phase| seen.iter().any(|progress| progress.phase == *phase))
        );

        let out = &setup.options.out;
        let mut names: Vec<_> =
            fs::read_dir(out).expect("listed").flatten().map(|e| e.file_name().into_string().expect("name")).collect();
        names.sort();
        assert_eq!(names, ["initrd", "ramdisk.json", "snponly.efi", "vmlinuz"]);
        let initrd = fs::read(out.join("initrd")).expect("read");
        let entries = listing(&unpack(&out.join("initrd"), compression));
        let paths: Vec<&str> = entries.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "dev",
                "dev/console",
                "dev/null",
                "init",
                "lib",
                "lib/firmware",
                "lib/firmware/a",
                "lib/firmware/a/fw.bin",
                "lib/modules",
                "lib/modules/failover.ko",
                "lib/modules/modules.alias",
                "lib/modules/modules.dep",
                "lib/modules/virtio_net.ko",
                "proc",
                "run",
                "sys",
                "tmp"
            ]
        );
        let data = |path: &str| &entries.iter().find(|(name, _)| name == path).expect("there").1;
        assert_eq!(data("lib/modules/modules.dep"), b"failover:\nvirtio_net: failover\n");
        assert_eq!(data("lib/modules/modules.alias"), b"alias virtio:d00000001v* virtio_net\n");
        assert_eq!(data("lib/firmware/a/fw.bin"), b"blob");
        assert_eq!(data("init"), &sample("", false));

        build(&setup.options, &mut |_| {}).and_then(|built| built.write(&setup.options.out)).expect("built again");
        assert!(fs::read(out.join("initrd")).expect("read") == initrd);
    }
}

#[test]
fn what_cannot_be_built_says_why_and_leaves_the_old_one() {
    let good = files("");
    let mut setup = setup(&good);
    build(&setup.options, &mut |_| {}).and_then(|built| built.write(&setup.options.out)).expect("built");
    let manifest = fs::read(setup.options.out.join("ramdisk.json")).expect("read");
    let package = setup.options.kernel_package.clone();
    let change = |path: &str, data: Option<Vec<u8>>| {
        let mut files: Vec<_> = good.iter().filter(|(name, _)| *name != path).cloned().collect();
        if let Some(data) = data {
            files.push((good.iter().find(|(name, _)| *name == path).expect("there").0, data));
        }
        files
    };
    let mut two = good.clone();
    two.push(("boot/vmlinuz-6.2-test", bzimage()));
    let rows = [
        (change("boot/vmlinuz-6.1-test", None), "0 kernels"),
        (two, "2 kernels"),
        (change("boot/vmlinuz-6.1-test", Some(vec![0; 2000])), "no x86 bzImage"),
        (change("lib/modules/6.1-test/modules.builtin", None), "virtio_net needs ptp"),
        (change("lib/modules/6.1-test/kernel/sound/snd.ko", Some(vec![1; 200])), "snd.ko: not a kernel module"),
    ];
    for (files, part) in rows {
        fs::write(&package, deb(&files, ".zst")).expect("written");
        let error = build(&setup.options, &mut |_| {}).expect_err("refused").to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    fs::write(&package, deb(&good, ".zst")).expect("written");
    fs::write(&setup.options.executable, sample("", true)).expect("written");
    let error = build(&setup.options, &mut |_| {}).expect_err("refused").to_string();
    assert!(error.contains("linked dynamically") && error.contains("crt-static"), "{error}");
    setup.options.executable = setup.folder.path().join("none");
    assert!(matches!(build(&setup.options, &mut |_| {}), Err(RamdiskError::Io { .. })));
    assert!(fs::read(setup.options.out.join("ramdisk.json")).expect("read") == manifest);
}

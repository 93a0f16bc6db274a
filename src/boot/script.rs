//! Boot scripts for iPXE: templates of `ipxe/`, filled in by pure functions.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use minijinja::{Environment, UndefinedBehavior, context};

use crate::api::MacAddress;
use crate::protocol::{CMDLINE_CA, CMDLINE_MAC, CMDLINE_SERVER, CMDLINE_TOKEN};

use super::Firmware;
use super::files::INITRD;

/// Longest kernel command line of x86 (`COMMAND_LINE_SIZE`), in bytes, less some room for the firmware's own.
const MAX_COMMAND_LINE: usize = 2000;

/// What a script calls the archive with network data.
const ARCHIVE: &str = "host";

/// A script cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The kernel would cut it off.
    #[error("the kernel command line has {0} bytes; {MAX_COMMAND_LINE} are the limit: shorten boot.kernel_args")]
    CommandLine(usize),
    /// A fault in a template; the templates are part of the program.
    #[error("boot script template: {0}")]
    Template(#[from] minijinja::Error),
}

/// `boot.kernel_args` cannot be put into a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelArgsError {
    /// iPXE or the script would take it for something else.
    #[error("boot.kernel_args: the character {0:?} cannot be used in a boot script")]
    Character(char),
    /// No room is left for Slipway's own.
    #[error("boot.kernel_args: {0} bytes; 1024 are the limit")]
    Length(usize),
}

/// Whether these kernel arguments can be used in a script.
pub fn check_kernel_args(args: &str) -> Result<(), KernelArgsError> {
    if args.len() > 1024 {
        return Err(KernelArgsError::Length(args.len()));
    }
    match args.chars().find(|c| !is_plain(*c)) {
        Some(bad) => Err(KernelArgsError::Character(bad)),
        None => Ok(()),
    }
}

/// What the ramdisk's script says.
#[derive(Clone, Debug)]
pub struct Ramdisk<'a> {
    /// Which machine, and what for.
    pub who: &'a str,
    /// Address and port of boot HTTP that the machine reached.
    pub boot: SocketAddr,
    /// Port of the API at the same address.
    pub api_port: u16,
    /// SHA-256 of the CA's certificate (DER), hex.
    pub ca_sha256: &'a str,
    /// Boot token of this boot.
    pub token: &'a str,
    /// Hardware address that asked.
    pub mac: MacAddress,
    /// Path of the archive with the machine's network data, if it has any.
    pub archive: Option<&'a str>,
    /// `boot.kernel_args`, checked by [`check_kernel_args`].
    pub kernel_args: &'a str,
}

/// The script that loads the ramdisk. `initrd=` names the initrd for UEFI, where the kernel's stub reads it by name
/// from the program that loaded it; under BIOS it does nothing.
pub fn ramdisk(facts: &Ramdisk<'_>) -> Result<String, ScriptError> {
    let api = SocketAddr::new(facts.boot.ip(), facts.api_port);
    let mut command_line = format!("initrd={INITRD}");
    if facts.archive.is_some() {
        command_line.push_str(&format!(" initrd={ARCHIVE}"));
    }
    let own = [
        (CMDLINE_SERVER, format!("https://{api}")),
        (CMDLINE_CA, facts.ca_sha256.to_owned()),
        (CMDLINE_TOKEN, facts.token.to_owned()),
        (CMDLINE_MAC, facts.mac.to_string()),
    ];
    for part in std::iter::once(facts.kernel_args.trim().to_owned())
        .filter(|args| !args.is_empty())
        .chain(own.iter().map(|(key, value)| format!("{key}={value}")))
    {
        command_line.push(' ');
        command_line.push_str(&part);
    }
    if command_line.len() > MAX_COMMAND_LINE {
        return Err(ScriptError::CommandLine(command_line.len()));
    }
    let base = base_url(facts.boot);
    render("ramdisk.ipxe", context! { who => facts.who, base, command_line, archive => facts.archive })
}

/// The script that boots the ISO at this URL.
pub fn live_iso(who: &str, url: &str) -> Result<String, ScriptError> {
    render("live-iso.ipxe", context! { who, url })
}

/// The script that goes on to the local disk.
pub fn local_disk(reason: &str) -> Result<String, ScriptError> {
    render("local-disk.ipxe", context! { reason })
}

/// The script that shows why there is nothing to boot, waits ten seconds and goes on to the local disk.
pub fn error(mac: MacAddress, reason: &str) -> Result<String, ScriptError> {
    render("error.ipxe", context! { mac => mac.to_string(), reason })
}

/// `http://address`, with the port when it is not 80.
pub fn base_url(boot: SocketAddr) -> String {
    match (boot.ip(), boot.port()) {
        (IpAddr::V4(ip), 80) => format!("http://{ip}"),
        (IpAddr::V6(ip), 80) => format!("http://[{ip}]"),
        _ => format!("http://{boot}"),
    }
}

/// Where iPXE finds its script: what DHCP answers in option 67. iPXE puts the UUID in.
pub fn script_url(boot: SocketAddr, mac: MacAddress, firmware: Firmware) -> String {
    format!("{}/boot/ipxe?mac={}&uuid=${{uuid}}&arch={}", base_url(boot), mac.hyphenated(), firmware.number())
}

/// Where HTTP boot finds its boot program: what DHCP answers an `HTTPClient` in option 67.
pub fn program_url(boot: SocketAddr, name: &str) -> String {
    format!("{}/boot/files/{name}", base_url(boot))
}

/// Characters that mean themselves to iPXE's script reader: no quotes, no `$`, no `\`, no operators, no control
/// characters.
fn is_plain(c: char) -> bool {
    c == ' '
        || (c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '$' | '\\' | '|' | '&' | ';' | '#' | '`' | '{' | '}'))
}

fn render(name: &str, values: minijinja::Value) -> Result<String, ScriptError> {
    Ok(TEMPLATES
        .as_ref()
        .map_err(|error| minijinja::Error::new(error.kind(), error.to_string()))?
        .get_template(name)?
        .render(values)?)
}

/// The templates. Every value that goes in is made plain on its way: whatever a value holds, it stays on its line
/// and is no command.
static TEMPLATES: LazyLock<Result<Environment<'static>, minijinja::Error>> = LazyLock::new(|| {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    templates.set_formatter(|out, _, value| {
        let text = match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        let plain: String = text.chars().map(|c| if is_plain(c) { c } else { '?' }).collect();
        out.write_str(&plain)?;
        Ok(())
    });
    templates.add_template("live-iso.ipxe", include_str!("../../ipxe/live-iso.ipxe"))?;
    templates.add_template("ramdisk.ipxe", include_str!("../../ipxe/ramdisk.ipxe"))?;
    templates.add_template("local-disk.ipxe", include_str!("../../ipxe/local-disk.ipxe"))?;
    templates.add_template("error.ipxe", include_str!("../../ipxe/error.ipxe"))?;
    templates.add_template("to-disk.ipxe", include_str!("../../ipxe/to-disk.ipxe"))?;
    Ok(templates)
});

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

    fn facts(kernel_args: &str) -> Ramdisk<'_> {
        Ramdisk {
            who: "default/web-1, boot intent 7",
            boot: ([172, 22, 0, 1], 80).into(),
            api_port: 8443,
            ca_sha256: "00ff",
            token: "dG9rZW4",
            mac: MAC,
            archive: None,
            kernel_args,
        }
    }

    #[test]
    fn the_ramdisk_script() {
        let script = ramdisk(&facts("console=tty0 console=ttyS0,115200")).expect("script");
        insta::assert_snapshot!(script, @r"
        #!ipxe
        echo Slipway: ramdisk for default/web-1, boot intent 7
        :again
        imgfree
        kernel http://172.22.0.1/boot/files/vmlinuz initrd=initrd console=tty0 console=ttyS0,115200 slipway.server=https://172.22.0.1:8443 slipway.ca=00ff slipway.token=dG9rZW4 slipway.mac=52:54:00:12:34:56 || goto failed
        initrd --name initrd http://172.22.0.1/boot/files/initrd || goto failed
        boot || goto failed
        :failed
        inc attempt
        iseq ${attempt} 3 && goto giveup ||
        echo Slipway: the ramdisk cannot be loaded, next attempt in 5 seconds
        sleep 5
        goto again
        :giveup
        echo Slipway: the ramdisk cannot be loaded, going on to the local disk
        sleep 5
        imgfree
        iseq ${platform} efi && exit 1 ||
        sanboot --no-describe --drive 0x80 ||
        exit 1
        ");
    }

    #[test]
    fn network_data_comes_as_a_second_initrd() {
        let script = ramdisk(&Ramdisk { archive: Some("/boot/host/abc.cpio"), ..facts("") }).expect("script");
        assert!(script.contains(" initrd=initrd initrd=host slipway.server="), "{script}");
        let loads = "initrd --name initrd http://172.22.0.1/boot/files/initrd || goto failed\n\
                     initrd --name host http://172.22.0.1/boot/host/abc.cpio || goto failed\nboot";
        assert!(script.contains(loads), "{script}");
    }

    #[test]
    fn the_other_scripts() {
        insta::assert_snapshot!(local_disk("it has no boot intent: local disk").expect("script"), @r"
        #!ipxe
        echo Slipway: it has no boot intent: local disk
        imgfree
        iseq ${platform} efi && exit 1 ||
        sanboot --no-describe --drive 0x80 ||
        exit 1
        ");
        insta::assert_snapshot!(error(MAC, "no ramdisk is there").expect("script"), @r"
        #!ipxe
        echo
        echo Slipway cannot boot 52:54:00:12:34:56: no ramdisk is there
        echo
        sleep 10
        imgfree
        iseq ${platform} efi && exit 1 ||
        sanboot --no-describe --drive 0x80 ||
        exit 1
        ");
    }

    #[test]
    fn addresses_in_urls() {
        let v6: SocketAddr = "[fd00::1]:80".parse().expect("address");
        assert_eq!(base_url(v6), "http://[fd00::1]");
        let url = script_url(([10, 0, 0, 1], 8080).into(), MAC, Firmware::UefiX64);
        assert_eq!(url, "http://10.0.0.1:8080/boot/ipxe?mac=52-54-00-12-34-56&uuid=${uuid}&arch=7");
        assert_eq!(program_url(([10, 0, 0, 1], 80).into(), "ipxe.efi"), "http://10.0.0.1/boot/files/ipxe.efi");
    }

    #[test]
    fn kernel_args_that_would_be_commands_are_refused() {
        assert_eq!(check_kernel_args("console=ttyS0,115200 net.ifnames=0"), Ok(()));
        for bad in ["a\nb", "a || b", "${net0/ip}", "a;b", "\"a b\"", "a\\", "#", "ä"] {
            assert!(matches!(check_kernel_args(bad), Err(KernelArgsError::Character(_))), "{bad}");
        }
        assert_eq!(check_kernel_args(&"a".repeat(1025)), Err(KernelArgsError::Length(1025)));
        let long = Ramdisk { token: &"t".repeat(2000), ..facts("") };
        assert!(matches!(ramdisk(&long), Err(ScriptError::CommandLine(_))));
    }

    proptest! {
        #[test]
        fn no_value_becomes_a_line_or_a_command(reason in any::<String>()) {
            let plain = local_disk("x").expect("script");
            let script = local_disk(&reason).expect("script");
            prop_assert_eq!(script.lines().count(), plain.lines().count());
            let line = script.lines().nth(1).expect("echo");
            prop_assert!(line.starts_with("echo Slipway: "));
            prop_assert!(!line.contains(['$', '|', '&', ';', '\\', '"']));
        }
    }
}

//! Where the kernel sends packets to an address.

use std::io;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{self, Remembered};

/// Whether what is sent to an address stays in this box: it is one of its own, or of a whole network that it takes for its own
/// (`ip route add local`, an address of `lo` with a shorter prefix). What the kernel said is believed for a second.
///
/// # Errors
///
/// When the kernel cannot be asked.
pub(super) fn is_local(address: IpAddr) -> io::Result<bool> {
    static REMEMBERED: LazyLock<Mutex<Remembered<IpAddr, bool>>> = LazyLock::new(Mutex::default);
    let lock = || REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().get(&address, Instant::now());
    known.map_or_else(
        || {
            let is_local = ask(address)?;
            lock().put(address, is_local, Instant::now());
            Ok(is_local)
        },
        Ok,
    )
}

fn ask(address: IpAddr) -> io::Result<bool> {
    let mut message = RouteMessage::default();
    let (family, prefix, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = prefix;
    message.attributes.push(RouteAttribute::Destination(destination));
    match netlink::ask(RouteNetlinkMessage::GetRoute(message))? {
        Some(RouteNetlinkMessage::NewRoute(route)) => Ok(route.header.kind == RouteType::Local),
        // No route leads there.
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::{Guard, Special};

    /// Set in the child, which has networks of its own.
    const CHILD: &str = "SLIPWAY_TEST_LOCAL_ROUTES";

    #[test]
    fn what_the_kernel_delivers_to_the_box_itself_is_its_own() {
        if std::env::var_os(CHILD).is_some() {
            let guard = Guard::new("bmc.allow", Vec::new());
            let of = |text: &str| guard.judge(text.parse().unwrap()).map_err(|refused| refused.special);
            for own in ["172.30.0.1:80", "172.30.0.77:80", "10.9.8.7:80", "[::ffff:10.9.8.7]:80", "[2001:db8:1::5]:80"]
            {
                assert_eq!(of(own), Err(Special::Own), "{own}");
            }
            for other in ["172.30.1.1:80", "192.0.2.7:80", "[2001:db8:2::5]:80"] {
                assert_eq!(of(other), Ok(()), "{other}");
            }
            let allowing = Guard::new("bmc.allow", vec!["10.9.8.0/24".parse().unwrap()]);
            assert_eq!(allowing.judge("10.9.8.7:80".parse().unwrap()), Ok(()));
            return;
        }
        let script = "ip link set lo up && ip address add 172.30.0.1/24 dev lo && ip route add local 10.9.8.0/24 dev lo \
            && ip route add local 2001:db8:1::/64 dev lo && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
        let name = "outbound::route::tests::what_the_kernel_delivers_to_the_box_itself_is_its_own";
        let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

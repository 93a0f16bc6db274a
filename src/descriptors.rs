//! File descriptors: how many the process may have, and which part of them the listeners may give to callers.
//!
//! A process that is out of descriptors cannot write its database any more. Callers are not chosen, so all their
//! connections together get half of what there is; the rest is for the database, images, TFTP, BMCs.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// More than this many are not asked for: nothing here needs them.
const MOST: u64 = 1 << 20;
/// Fewest that the appliance starts with. Half of them are for 256 TFTP transfers with two sockets each, and for
/// database, images and BMCs.
const LEAST: u64 = 2048;

/// Raises the soft limit of open files to the hard one, up to a million. Returns how many may be open then.
///
/// # Errors
///
/// When the kernel does not tell the limit.
pub fn raise() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(MOST);
    if soft < wanted {
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => return Ok(wanted),
            Err(error) => tracing::warn!(%error, soft, hard, "cannot raise the limit of open files"),
        }
    }
    Ok(soft)
}

/// What helps where a port cannot be had. `protocol` is `TCP` or `UDP`; `key` is the setting with the address.
pub fn port_hint(error: &io::Error, protocol: &str, address: &SocketAddr, key: &str) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let sockets = if protocol == "UDP" { "-lunp" } else { "-ltnp" };
            format!(
                ": another program has {protocol} port {port}; `ss {sockets} sport = :{port}` as root shows which. End it, or set {key} to \
                 another port"
            )
        }
        io::ErrorKind::PermissionDenied if port < 1024 => format!(
            ": ports below 1024 take the capability CAP_NET_BIND_SERVICE, which the systemd unit gives. Run it as root, or set {key} to \
             another port"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!(
                ": this machine has no address {}; `ip address` shows those that it has. Set {key} to one of them",
                address.ip()
            )
        }
        _ => String::new(),
    }
}

/// Connections that each listener may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// The API and agents.
    pub api: usize,
    /// Boot HTTP.
    pub boot: usize,
}

/// There are too few to start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "only {0} files may be open at once, and at least {LEAST} are needed: raise the hard limit with LimitNOFILE= in the systemd unit, or with `ulimit -n` as root"
)]
pub struct TooFew(u64);

/// Divides what may be open at once among listeners, which take at most so many connections each.
///
/// # Errors
///
/// When it is less than 2048.
pub fn share(limit: u64, most: DescriptorShares) -> Result<DescriptorShares, TooFew> {
    if limit < LEAST {
        return Err(TooFew(limit));
    }
    let listeners = usize::try_from(limit / 2).unwrap_or(usize::MAX);
    let boot = most.boot.min(listeners / 4);
    Ok(DescriptorShares { api: most.api.min(listeners - boot), boot })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_get_half_and_no_more_than_they_need() {
        let most = DescriptorShares { api: 16_384, boot: 1024 };
        for (limit, api, boot) in [
            (2048, 768, 256),
            (4096, 1536, 512),
            (8192, 3072, 1024),
            (16_384, 7168, 1024),
            (34_816, 16_384, 1024),
            (65_536, 16_384, 1024),
            (u64::MAX, 16_384, 1024),
        ] {
            assert_eq!(share(limit, most), Ok(DescriptorShares { api, boot }), "{limit}");
        }
        for limit in [0, 128, 1024, 2047] {
            let reason = share(limit, most).expect_err("too few").to_string();
            assert!(reason.contains(&limit.to_string()) && reason.contains("LimitNOFILE="), "{reason}");
        }
    }

    #[test]
    fn what_keeps_a_port_is_told_apart() {
        let address: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        let high: SocketAddr = "10.0.0.1:8080".parse().expect("an address");
        for (kind, address, wanted) in [
            (io::ErrorKind::AddrInUse, address, "another program has TCP port 80"),
            (io::ErrorKind::PermissionDenied, address, "CAP_NET_BIND_SERVICE"),
            (io::ErrorKind::AddrNotAvailable, address, "no address 10.0.0.1"),
            (io::ErrorKind::PermissionDenied, high, ""),
            (io::ErrorKind::Other, address, ""),
        ] {
            let hint = port_hint(&kind.into(), "TCP", &address, "boot.listen");
            assert!(hint.contains(wanted) && hint.is_empty() == wanted.is_empty(), "{kind:?}: {hint}");
            assert!(hint.is_empty() || hint.contains("boot.listen"), "{hint}");
        }
    }
}

//! The outcome of a message: the reply, what is to be stored, and what there is to say about it.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use bytes::Bytes;
use dhcproto::v4::MessageType;

use crate::api::MacAddress;

/// Where an answer goes (RFC 2131 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To a relay, or another address that the network's routers and ARP lead to.
    Address(SocketAddrV4),
    /// To a client that has its address: a frame to its hardware address, so that nothing waits for ARP.
    Client {
        /// Where the frame goes.
        mac: MacAddress,
        /// Its address and port.
        to: SocketAddrV4,
    },
    /// To a client that has no address yet and cannot answer ARP: a frame to its hardware address.
    Hardware {
        /// Where the frame goes.
        mac: MacAddress,
        /// Address offered, the destination in the IP header.
        address: Ipv4Addr,
    },
    /// To everybody.
    Broadcast,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(to) => to.fmt(f),
            Self::Client { mac, to } => write!(f, "{to} ({mac})"),
            Self::Hardware { mac, address } => write!(f, "{address} ({mac})"),
            Self::Broadcast => f.write_str("everybody"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpReply {
    /// UDP payload.
    pub message: Vec<u8>,
    /// Where it goes.
    pub to: Destination,
}

/// A change of a lease's record on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseWrite {
    /// Whose record.
    pub address: Ipv4Addr,
    /// The record; `None` removes it.
    pub record: Option<Bytes>,
}

/// What is to be done about a message.
#[derive(Debug)]
pub struct MessageOutcome {
    /// The answer, to be sent once every write is on disk.
    pub reply: Option<DhcpReply>,
    /// Records to write.
    pub writes: Vec<LeaseWrite>,
    /// What happened, for the log.
    pub disposition: Disposition,
    /// Two machines show one hardware address: their UUIDs, as hex.
    pub duplicate_mac: Option<(String, String)>,
}

impl MessageOutcome {
    /// Nothing is sent and nothing changes.
    pub fn dropped(reason: DropReason) -> Self {
        Self { reply: None, writes: Vec::new(), disposition: Disposition::Dropped(reason), duplicate_mac: None }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// An address was offered.
    Offered {
        /// The address.
        address: Ipv4Addr,
        /// What the client was told to boot; `None` when it is not booting.
        boot: Option<String>,
        /// Whether it is of the pool and the client never had it.
        new: bool,
    },
    /// An address was leased.
    Bound {
        /// The address.
        address: Ipv4Addr,
        /// Whether the client had it before.
        renewed: bool,
        /// What the client was told to boot; `None` when it is not booting.
        boot: Option<String>,
    },
    /// Parameters without an address were given.
    Informed(Ipv4Addr),
    /// Boot information without an address was given.
    BootOnly(String),
    /// An address was given back.
    Released(Ipv4Addr),
    /// A known machine gave its address back, which stays its own.
    Kept(Ipv4Addr),
    /// A known machine's message says that another one uses its address, which is looked at.
    ConflictReported(Ipv4Addr),
    /// The client found another machine using its address.
    Declined {
        /// The address.
        address: Ipv4Addr,
        /// Whether it is this client's reservation.
        reserved: bool,
    },
    /// A request was refused.
    Refused {
        /// The address asked for.
        address: Ipv4Addr,
        /// Why.
        reason: NakReason,
    },
    /// Nothing was done.
    Dropped(DropReason),
}

/// Why a request is refused (DHCPNAK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NakReason {
    /// Outside the subnet.
    #[error("the address is not on this network")]
    WrongNetwork,
    /// The client has another one.
    #[error("the client's address is {0}")]
    Other(Ipv4Addr),
    /// Somebody else has it.
    #[error("the address is another machine's")]
    Taken,
    /// What is left of the pool is for others.
    #[error("the addresses that are left are kept for known machines, or for hosts of other namespaces")]
    Kept,
    /// The network is in force no more.
    #[error("the network is served no more")]
    Ended,
    /// Neither in the pool nor reserved.
    #[error("the address is not given out here")]
    NotInPool,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropReason {
    /// The network is not served.
    #[error("the network is not served")]
    Off,
    /// The network is in force no more, and the client has no address of it.
    #[error("the network is served no more")]
    Ended,
    /// The client asked another server.
    #[error("the client chose server {0}")]
    OtherServer(Ipv4Addr),
    /// The network serves known machines only.
    #[error("the machine is neither reserved nor a known host")]
    NotKnown,
    /// The machine boots its disk, so the proxy has nothing to add.
    #[error("the machine boots its local disk")]
    LocalDisk,
    /// Only firmware and iPXE ask a proxy.
    #[error("the client is not booting")]
    NotBooting,
    /// Not a message for a server.
    #[error("a server does not answer {0:?}")]
    Kind(MessageType),
    /// The message lacks the address it is about.
    #[error("the message names no address")]
    NoAddress,
    /// The message is about an address that the client does not have.
    #[error("{0} is not the client's address")]
    NotTheirs(Ipv4Addr),
    /// The message gives back an address and comes from another.
    #[error("the message gives back {0} and does not come from there")]
    NotFrom(Ipv4Addr),
    /// There is no pool.
    #[error("the network has no pool: give the machine a reservation, or the network a pool")]
    NoPool,
    /// The pool is used up.
    #[error("the pool is used up: make it larger, the lease shorter, or give the machine a reservation")]
    PoolEmpty,
    /// What is left of the pool is for known machines.
    #[error(
        "the pool is used up but for what is kept for known machines: make it larger, unknown_lease shorter, or the machine a BareMetalHost"
    )]
    PoolKept,
    /// What is left of the pool is for hosts of other namespaces.
    #[error(
        "the pool is used up but for what is kept for hosts of other namespaces, which have fewer addresses: make it larger, or give the machine a reservation"
    )]
    PoolShared,
    /// The reservation's address is still another machine's, and there is no other.
    #[error("the reserved address {0} is still leased to another machine, and the pool has no other")]
    ReservationTaken(Ipv4Addr),
}

/// How loud a disposition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For whoever looks for a fault.
    Debug,
    /// For the operator.
    Info,
    /// The operator should do something.
    Warn,
}

impl Disposition {
    /// How loud it is. Unknown machines come and go; known ones are what the operator waits for.
    pub fn level(&self, known: bool) -> Level {
        match self {
            Self::Declined { .. } => Level::Warn,
            Self::Dropped(
                DropReason::NoPool
                | DropReason::PoolEmpty
                | DropReason::PoolKept
                | DropReason::PoolShared
                | DropReason::ReservationTaken(_),
            ) => Level::Warn,
            Self::Bound { renewed, boot, .. } if known && (!renewed || boot.is_some()) => Level::Info,
            Self::BootOnly(_) | Self::Refused { .. } if known => Level::Info,
            _ => Level::Debug,
        }
    }
}

impl Disposition {
    /// It as one of few sentences, for the log, which has the rest in fields.
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Offered { .. } => "DHCP offered an address",
            Self::Bound { renewed: false, .. } => "DHCP leased an address",
            Self::Bound { renewed: true, .. } => "DHCP renewed a lease",
            Self::Informed(_) => "DHCP informed a client that has an address",
            Self::BootOnly(_) => "DHCP told a machine what to boot",
            Self::Released(_) => "a client gave its address back",
            Self::Kept(_) => "a machine gave back an address that stays its own",
            Self::ConflictReported(_) => "a machine declined its address: which machine answers there is looked at",
            Self::Declined { reserved: false, .. } => {
                "an address is in use by a machine that did not get it here: it is not given out for a while"
            }
            Self::Declined { reserved: true, .. } => {
                "a reserved address is in use by another machine: find that machine"
            }
            Self::Refused { .. } => "DHCP refused an address",
            Self::Dropped(_) => "DHCP did not answer a message",
        }
    }

    /// The address that it is about.
    pub fn address(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Offered { address, .. }
            | Self::Bound { address, .. }
            | Self::Informed(address)
            | Self::Released(address)
            | Self::Kept(address)
            | Self::ConflictReported(address)
            | Self::Declined { address, .. }
            | Self::Refused { address, .. } => Some(*address),
            Self::BootOnly(_) | Self::Dropped(_) => None,
        }
    }

    /// What the client was told to boot.
    pub fn boot(&self) -> Option<&str> {
        match self {
            Self::Offered { boot, .. } | Self::Bound { boot, .. } => boot.as_deref(),
            Self::BootOnly(boot) => Some(boot),
            _ => None,
        }
    }

    /// Why the client did not get what it asked for.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Refused { reason, .. } => Some(reason.to_string()),
            Self::Dropped(reason) => Some(reason.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let boots = |f: &mut fmt::Formatter<'_>, boot: &Option<String>| match boot {
            Some(boot) => write!(f, ", {boot}"),
            None => Ok(()),
        };
        match self {
            Self::Offered { address, boot, .. } => write!(f, "offered {address}").and_then(|()| boots(f, boot)),
            Self::Bound { address, renewed, boot } => {
                write!(f, "{} {address}", if *renewed { "renewed" } else { "leased" }).and_then(|()| boots(f, boot))
            }
            Self::Informed(address) => write!(f, "informed {address}"),
            Self::BootOnly(boot) => f.write_str(boot),
            Self::Released(address) => write!(f, "released {address}"),
            Self::Kept(address) => write!(f, "released {address}, which stays its own"),
            Self::ConflictReported(address) => {
                write!(f, "declined {address}; which machine answers there is looked at")
            }
            Self::Declined { address, reserved: false } => {
                write!(f, "{address} is in use by a machine that did not get it here; it is not given out for a while")
            }
            Self::Declined { address, reserved: true } => {
                write!(f, "the reserved address {address} is in use by another machine: find that machine")
            }
            Self::Refused { address, reason } => write!(f, "refused {address}: {reason}"),
            Self::Dropped(reason) => write!(f, "not answered: {reason}"),
        }
    }
}

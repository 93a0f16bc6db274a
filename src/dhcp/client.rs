//! Client classes: what kind of program asks, and the machine under it.

use crate::api::MacAddress;
use crate::boot::{BootClient, ClientKind, Firmware};

use super::packet::{DhcpRequest, code};

/// The client as the boot decision wants to know it.
pub fn boot_client(request: &DhcpRequest<'_>) -> BootClient {
    BootClient { mac: request.mac, firmware: firmware(request), kind: kind(request) }
}

/// Which program asks: iPXE says so itself, firmware has its vendor class, everything else is a running system.
pub fn kind(request: &DhcpRequest<'_>) -> ClientKind {
    let user_class = request.get(code::USER_CLASS);
    if request.has(code::IPXE) || user_class.is_some_and(|data| is_ipxe(&data)) {
        return ClientKind::Ipxe;
    }
    match request.get(code::VENDOR_CLASS) {
        Some(class) if class.starts_with(b"PXEClient") => ClientKind::Pxe,
        Some(class) if class.starts_with(b"HTTPClient") => ClientKind::HttpBoot,
        _ => ClientKind::System,
    }
}

/// iPXE writes its user class plainly; RFC 3004 wants each class behind its length. Both are in use.
fn is_ipxe(data: &[u8]) -> bool {
    if data == b"iPXE" {
        return true;
    }
    let mut rest = data;
    while let [length, tail @ ..] = rest {
        let Some(class) = tail.get(..usize::from(*length)) else { return false };
        if class == b"iPXE" {
            return true;
        }
        rest = &tail[class.len()..];
    }
    false
}

/// The firmware: option 93 (RFC 4578 section 2.1; the first type when there are several), else the number in
/// `PXEClient:Arch:00007:…`, else BIOS, which is what a PXE client without either is.
fn firmware(request: &DhcpRequest<'_>) -> Firmware {
    let stated =
        request.get(code::ARCHITECTURE).and_then(|data| Some(u16::from_be_bytes([*data.first()?, *data.get(1)?])));
    let in_class = || {
        let class = request.get(code::VENDOR_CLASS)?;
        let text = std::str::from_utf8(&class).ok()?.to_owned();
        text.split(':').nth(2)?.parse().ok()
    };
    Firmware::from_type(stated.or_else(in_class).unwrap_or(0))
}

/// UUID of the machine (option 97, RFC 4578 section 2.3), when it is one and not a filler.
pub fn machine_uuid(request: &DhcpRequest<'_>) -> Option<[u8; 16]> {
    let [kind, uuid @ ..]: [u8; 17] = request.fixed(code::MACHINE_ID)?;
    let filler = uuid.iter().all(|byte| *byte == 0) || uuid.iter().all(|byte| *byte == 0xff);
    (kind == 0 && !filler).then_some(uuid)
}

/// Whether two UUIDs are one machine's: firmware and iPXE do not agree on the byte order of the first three fields.
pub fn same_machine(one: [u8; 16], other: [u8; 16]) -> bool {
    let mut swapped = other;
    swapped[0..4].reverse();
    swapped[4..6].reverse();
    swapped[6..8].reverse();
    one == other || one == swapped
}

/// The longest client identifier that names anybody, in bytes: what one instance of the option holds. Those of RFC 4361 have
/// 135 at most; a longer one is somebody's who wants it kept.
const LONGEST_ID: usize = 255;

/// A client as leases know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseClient {
    /// Hardware address.
    pub mac: MacAddress,
    /// Client identifier (option 61), when it says more than the hardware address.
    pub id: Option<Box<[u8]>>,
    /// It has a reservation or is a known host: then its hardware address alone names it
    /// (docs/design/decisions.md, D10).
    pub known: bool,
}

/// What names a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientKey {
    /// Its hardware address.
    Mac(MacAddress),
    /// Its client identifier.
    Id(Box<[u8]>),
}

impl LeaseClient {
    /// The client that sent a message.
    pub fn of(request: &DhcpRequest<'_>, known: bool) -> Self {
        let id = request.client_id();
        // Hardware type and address: says nothing that chaddr does not.
        let is_mac = |id: &[u8]| id.first() == Some(&1) && id[1..] == request.mac.0;
        let id = id.filter(|id| !is_mac(id) && id.len() <= LONGEST_ID).map(|id| id.into_owned().into_boxed_slice());
        Self { mac: request.mac, id, known }
    }

    /// What names it: known machines go by their hardware address whatever client identifier firmware, iPXE, ramdisk
    /// and installed system send; others by client identifier, else hardware address (RFC 2131 section 4.2).
    pub fn key(&self) -> ClientKey {
        match &self.id {
            Some(id) if !self.known => ClientKey::Id(id.clone()),
            _ => ClientKey::Mac(self.mac),
        }
    }
}

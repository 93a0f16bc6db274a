//! The BMC's LAN settings, asked through the kernel's IPMI device (IPMI 2.0 sections 22.24 and 23.2).

use std::fs::{File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::api::MacAddress;

/// Where the device may be.
const DEVICES: [&str; 3] = ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"];
/// How long a BMC may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause between two looks for the answer.
const LOOK: Duration = Duration::from_millis(5);
/// Longest answer in bytes (`IPMI_MAX_MSG_LENGTH`).
const MAX_ANSWER: usize = 272;
/// Channels that may be a LAN (section 6.3); the first is one nearly everywhere.
const CHANNELS: std::ops::RangeInclusive<u8> = 1..=11;

const APP: u8 = 0x06;
const TRANSPORT: u8 = 0x0c;
const GET_CHANNEL_INFO: u8 = 0x42;
const GET_LAN_PARAMETER: u8 = 0x02;
const LAN_MEDIUM: u8 = 0x04;
const PARAMETER_ADDRESS: u8 = 3;
const PARAMETER_MAC: u8 = 5;

/// The LAN channel of a BMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lan {
    /// Its address.
    pub address: Option<Ipv4Addr>,
    /// Its hardware address.
    pub mac: Option<MacAddress>,
}

/// A command was not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub enum IpmiError {
    /// The device.
    #[error("the IPMI device: {0}")]
    Device(#[from] io::Error),
    /// Nothing came back in time.
    #[error("the BMC did not answer within {} s", ANSWER.as_secs())]
    Silent,
    /// The BMC said no.
    #[error("the BMC answered with completion code {0:#04x}")]
    Completion(u8),
}

/// Asks one command: network function, command, data; gives what comes after the completion code.
type Ask<'a> = dyn FnMut(u8, u8, &[u8]) -> Result<Vec<u8>, IpmiError> + 'a;

/// The first LAN channel that has an address, else the first there is. `None` without a LAN.
///
/// # Errors
///
/// When the BMC does not answer at all. A command that it refuses counts as a channel without a LAN.
pub fn lan(ask: &mut Ask<'_>) -> Result<Option<Lan>, IpmiError> {
    let mut found = None;
    for channel in CHANNELS {
        let medium = optional(ask(APP, GET_CHANNEL_INFO, &[channel]))?.and_then(|info| info.get(1).copied());
        // Old BMCs know no channels, and have their LAN on the first.
        let lan = medium.map_or(channel == 1, |medium| medium & 0x7f == LAN_MEDIUM);
        if !lan {
            continue;
        }
        let mut parameter = |number| optional(ask(TRANSPORT, GET_LAN_PARAMETER, &[channel, number, 0, 0]));
        // Behind the parameter's revision.
        let address = parameter(PARAMETER_ADDRESS)?.and_then(|data| data.get(1..5)?.try_into().ok().map(octets));
        let mac = parameter(PARAMETER_MAC)?.and_then(|data| data.get(1..7)?.try_into().ok().map(MacAddress));
        let lan = Lan {
            address: address.filter(|address| !address.is_unspecified() && !address.is_broadcast()),
            mac: mac.filter(|mac| mac.0 != [0; 6]),
        };
        if lan.address.is_some() {
            return Ok(Some(lan));
        }
        found = found.or(Some(lan));
    }
    Ok(found)
}

fn octets(bytes: [u8; 4]) -> Ipv4Addr {
    Ipv4Addr::from(bytes)
}

fn optional(answer: Result<Vec<u8>, IpmiError>) -> Result<Option<Vec<u8>>, IpmiError> {
    match answer {
        Ok(data) => Ok(Some(data)),
        Err(IpmiError::Completion(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernel's IPMI device (`linux/ipmi.h`).
pub struct Device {
    file: File,
    number: nix::libc::c_long,
}

impl Device {
    /// Opens the device below `root`; `None` when the machine has none.
    pub fn open(root: &Path) -> Option<Self> {
        let open = |path: &&str| OpenOptions::new().read(true).write(true).open(root.join(path)).ok();
        DEVICES.iter().find_map(open).map(|file| Self { file, number: 0 })
    }

    /// One command to the BMC.
    ///
    /// # Errors
    ///
    /// [`IpmiError`].
    pub fn ask(&mut self, function: u8, command: u8, data: &[u8]) -> Result<Vec<u8>, IpmiError> {
        self.number += 1;
        let mut data = data.to_vec();
        let mut address = kernel::IpmiAddr::bmc();
        let request = kernel::IpmiReq {
            address: &raw mut address,
            address_length: kernel::BMC_ADDRESS_LENGTH,
            number: self.number,
            message: kernel::IpmiMsg::new(function, command, &mut data),
        };
        let mut request = request;
        // SAFETY: the kernel reads the request, and the address and the data that it points to, all of which live
        // until the call returns, in the lengths given.
        unsafe { kernel::send(self.file.as_raw_fd(), &raw mut request) }.map_err(io::Error::from)?;
        let until = Instant::now() + ANSWER;
        while Instant::now() < until {
            if let Some(answer) = self.receive()? {
                return match answer.split_first() {
                    Some((0, data)) => Ok(data.to_vec()),
                    Some((code, _)) => Err(IpmiError::Completion(*code)),
                    None => Err(IpmiError::Completion(0xff)),
                };
            }
            std::thread::sleep(LOOK);
        }
        Err(IpmiError::Silent)
    }

    /// The answer to the last command, if it is there. Answers to earlier ones and events are dropped.
    fn receive(&self) -> Result<Option<Vec<u8>>, IpmiError> {
        let mut data = vec![0; MAX_ANSWER];
        let mut address = kernel::IpmiAddr::bmc();
        let mut received = kernel::IpmiRecv {
            kind: 0,
            address: &raw mut address,
            address_length: kernel::ADDRESS_LENGTH,
            number: 0,
            message: kernel::IpmiMsg::new(0, 0, &mut data),
        };
        // SAFETY: the kernel writes the record, and at most as much to address and data as their lengths say; both
        // live until the call returns.
        match unsafe { kernel::receive(self.file.as_raw_fd(), &raw mut received) } {
            // Nothing there, or something that was cut to what fits.
            Err(Errno::EAGAIN | Errno::EMSGSIZE) => return Ok(None),
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) => {}
        }
        let ours = received.kind == kernel::RESPONSE && received.number == self.number;
        data.truncate(received.message.length());
        Ok(ours.then_some(data))
    }
}

/// The kernel's structures and calls.
mod kernel {
    use nix::libc::{c_int, c_long, c_short, c_uint};

    pub const RESPONSE: c_int = 1;
    pub const ADDRESS_LENGTH: c_uint = size_of::<IpmiAddr>() as c_uint;
    /// `struct ipmi_system_interface_addr`: type, channel, unit, and what it is filled up with.
    pub const BMC_ADDRESS_LENGTH: c_uint = 8;
    const SYSTEM_INTERFACE: c_int = 0x0c;
    const BMC_CHANNEL: c_short = 0x0f;

    /// `struct ipmi_addr`, the largest of the addresses.
    #[repr(C)]
    pub struct IpmiAddr {
        kind: c_int,
        channel: c_short,
        data: [u8; 32],
    }

    impl IpmiAddr {
        pub fn bmc() -> Self {
            Self { kind: SYSTEM_INTERFACE, channel: BMC_CHANNEL, data: [0; 32] }
        }
    }

    /// `struct ipmi_msg`
    #[repr(C)]
    pub struct IpmiMsg {
        function: u8,
        command: u8,
        length: u16,
        data: *mut u8,
    }

    impl IpmiMsg {
        /// Of a buffer that must outlive it.
        pub fn new(function: u8, command: u8, data: &mut [u8]) -> Self {
            let length = u16::try_from(data.len()).unwrap_or(u16::MAX);
            Self { function, command, length, data: data.as_mut_ptr() }
        }

        pub fn length(&self) -> usize {
            usize::from(self.length)
        }
    }

    /// `struct ipmi_req`
    #[repr(C)]
    pub struct IpmiReq {
        pub address: *mut IpmiAddr,
        pub address_length: c_uint,
        pub number: c_long,
        pub message: IpmiMsg,
    }

    /// `struct ipmi_recv`
    #[repr(C)]
    pub struct IpmiRecv {
        pub kind: c_int,
        pub address: *mut IpmiAddr,
        pub address_length: c_uint,
        pub number: c_long,
        pub message: IpmiMsg,
    }

    nix::ioctl_read!(send, b'i', 13, IpmiReq);
    nix::ioctl_readwrite!(receive, b'i', 11, IpmiRecv);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BMC with these channels: number, medium, address, hardware address.
    fn ask(channels: &[(u8, u8, [u8; 4], [u8; 6])], command: (u8, u8), data: &[u8]) -> Result<Vec<u8>, IpmiError> {
        let channel = channels.iter().find(|channel| channel.0 == data[0]);
        let Some((number, medium, address, mac)) = channel else { return Err(IpmiError::Completion(0xcc)) };
        match (command, data.get(1)) {
            ((APP, GET_CHANNEL_INFO), None) => Ok(vec![*number, 0x80 | medium, 1]),
            ((TRANSPORT, GET_LAN_PARAMETER), Some(&PARAMETER_ADDRESS)) => Ok([&[0x11][..], address].concat()),
            ((TRANSPORT, GET_LAN_PARAMETER), Some(&PARAMETER_MAC)) => Ok([&[0x11][..], mac].concat()),
            other => panic!("not to be asked: {other:?}"),
        }
    }

    #[test]
    fn the_first_lan_with_an_address_is_the_bmcs() {
        let mac = |last| [2, 0, 0, 0, 0, last];
        let rows = [
            (vec![(1, 4, [10, 0, 0, 5], mac(1))], Some((Some([10, 0, 0, 5]), Some(mac(1))))),
            (
                vec![(1, 5, [10, 0, 0, 5], mac(1)), (8, 4, [10, 0, 0, 6], mac(8))],
                Some((Some([10, 0, 0, 6]), Some(mac(8)))),
            ),
            (vec![(1, 4, [0; 4], mac(1)), (2, 4, [10, 0, 0, 7], mac(2))], Some((Some([10, 0, 0, 7]), Some(mac(2))))),
            (vec![(1, 4, [0; 4], mac(1)), (2, 4, [0; 4], mac(2))], Some((None, Some(mac(1))))),
            (vec![(1, 4, [255; 4], [0; 6])], Some((None, None))),
            (vec![(1, 2, [10, 0, 0, 5], mac(1))], None),
        ];
        for (channels, wanted) in rows {
            let found = lan(&mut |function, command, data| ask(&channels, (function, command), data)).expect("answers");
            let wanted = wanted.map(|(address, mac)| Lan { address: address.map(octets), mac: mac.map(MacAddress) });
            assert_eq!(found, wanted, "{channels:?}");
        }
    }

    #[test]
    fn a_bmc_that_refuses_has_no_address_and_one_that_is_silent_is_an_error() {
        let refused = lan(&mut |_, _, _| Err(IpmiError::Completion(0xc1))).expect("answers");
        assert_eq!(refused, Some(Lan { address: None, mac: None }), "the first channel is taken for a LAN");
        let short = lan(&mut |_, _, _| Ok(vec![0, 4])).expect("answers");
        assert_eq!(short, Some(Lan { address: None, mac: None }));
        assert!(matches!(lan(&mut |_, _, _| Err(IpmiError::Silent)), Err(IpmiError::Silent)));
    }

    #[test]
    fn a_machine_without_the_device_has_none() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(Device::open(root.path()).is_none());
        // Something that is no such device is an error, not a crash.
        std::fs::create_dir(root.path().join("dev")).expect("made");
        std::fs::write(root.path().join("dev/ipmi0"), "").expect("written");
        let mut device = Device::open(root.path()).expect("opened");
        assert!(matches!(device.ask(APP, GET_CHANNEL_INFO, &[1]), Err(IpmiError::Device(_))));
    }

    #[test]
    fn the_kernels_structures_have_their_sizes() {
        #[cfg(target_pointer_width = "64")]
        assert_eq!(
            (size_of::<kernel::IpmiMsg>(), size_of::<kernel::IpmiReq>(), size_of::<kernel::IpmiRecv>()),
            (16, 40, 48)
        );
        assert_eq!(kernel::ADDRESS_LENGTH, 40);
    }
}

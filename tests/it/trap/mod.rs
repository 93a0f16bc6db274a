//! A service that nobody must come to.

use std::net::{IpAddr, UdpSocket};

/// A service of this box, by TCP and by UDP, on the same port.
pub struct Trap {
    tcp: std::net::TcpListener,
    udp: UdpSocket,
    pub port: u16,
}

impl Trap {
    pub fn new(ip: IpAddr) -> Self {
        loop {
            let tcp = std::net::TcpListener::bind((ip, 0)).unwrap();
            let port = tcp.local_addr().unwrap().port();
            let Ok(udp) = UdpSocket::bind((ip, port)) else { continue };
            tcp.set_nonblocking(true).unwrap();
            udp.set_nonblocking(true).unwrap();
            return Self { tcp, udp, port };
        }
    }

    /// Who came: nobody, it is to be hoped.
    pub fn visitors(&self) -> Vec<String> {
        let (tcp, udp) = (self.tcp.accept().is_ok(), self.udp.recv_from(&mut [0; 64]).is_ok());
        let came = [("tcp", tcp), ("udp", udp)].into_iter().filter(|(_, came)| *came);
        came.map(|(by, _)| format!("{by} to port {}", self.port)).collect()
    }
}

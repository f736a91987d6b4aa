//! Names and ports: where the store listens and where ranks find it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// How long a port may stay in use, by a job that is just ending, before that is an error.
const IN_USE: Duration = Duration::from_secs(5);

/// Loopback, by which ranks of one machine meet, best first. A machine may have either alone.
pub(super) const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Where rank 0 listens.
#[derive(Debug, PartialEq, Eq)]
enum Interfaces {
    /// The first of these addresses that this machine has.
    FirstOf(Vec<IpAddr>),
    Every,
}

impl Interfaces {
    /// A name may mean another address here than elsewhere, and an address may be translated on the
    /// way, so anything but loopback means every interface.
    fn of(host: &str) -> Self {
        match loopback(host) {
            Some(addresses) => Self::FirstOf(addresses),
            None => Self::Every,
        }
    }

    fn bind(&self, port: u16) -> io::Result<TcpListener> {
        match self {
            Self::Every => everywhere(port),
            Self::FirstOf(addresses) => first_of(addresses, port),
        }
    }
}

/// Binds the store's port; one that is in use may become free within a few seconds.
pub(super) fn bind(host: &str, port: u16, until: Instant) -> io::Result<TcpListener> {
    let interfaces = Interfaces::of(host);
    let until = until.min(Instant::now() + IN_USE);
    loop {
        match interfaces.bind(port) {
            Err(error) if in_use(&error) && Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    }
}

/// A free port of loopback, of whichever family this machine has.
pub(super) fn on_loopback() -> io::Result<TcpListener> {
    first_of(&LOOPBACK, 0)
}

fn first_of(addresses: &[IpAddr], port: u16) -> io::Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for &ip in addresses {
        match TcpListener::bind((ip, port)) {
            // Ranks would find the owner of the port here before they found us elsewhere.
            Err(error) if !in_use(&error) => last = error,
            bound => return bound,
        }
    }
    Err(last)
}

/// Binds a port on every interface, for both families: with one socket, so that there is one port
/// to have and one thread to accept.
///
/// A socket for IPv6 takes IPv4 too only where `net.ipv6.bindv6only` is 0, unless it says so itself.
/// It does so also where no interface has an IPv6 address. A kernel without IPv6 has no such socket.
pub(crate) fn everywhere(port: u16) -> io::Result<TcpListener> {
    match dual(port) {
        Err(error) if !in_use(&error) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        bound => bound,
    }
}

#[cfg(unix)]
fn dual(port: u16) -> io::Result<TcpListener> {
    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::net::{AddressFamily, SocketAddrV6, SocketType, bind, listen, socket, sockopt};

    /// The system's own limit is lower, and the ranks of a large world connect at the same moment.
    const BACKLOG: i32 = 4096;

    let socket = socket(AddressFamily::INET6, SocketType::STREAM, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    bind(
        &socket,
        &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
    )?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(not(unix))]
fn dual(port: u16) -> io::Result<TcpListener> {
    let _port = port;
    Err(io::ErrorKind::Unsupported.into())
}

fn in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Where this process reaches a listener of its own, best first. A machine may lack some of these
/// addresses, never all.
pub(super) fn own(listener: &TcpListener) -> io::Result<Vec<SocketAddr>> {
    let address = listener.local_addr()?;
    let ips = match address.ip() {
        ip if !ip.is_unspecified() => return Ok(vec![address]),
        IpAddr::V4(_) => &LOOPBACK[..1],
        // Another process may have the port for IPv4.
        IpAddr::V6(_) if is_ipv6_alone(listener) => &LOOPBACK[1..],
        IpAddr::V6(_) => &LOOPBACK,
    };
    let port = address.port();
    Ok(ips.iter().map(|&ip| SocketAddr::new(ip, port)).collect())
}

#[cfg(unix)]
fn is_ipv6_alone(listener: &TcpListener) -> bool {
    rustix::net::sockopt::ipv6_v6only(listener).unwrap_or(false)
}

#[cfg(not(unix))]
fn is_ipv6_alone(_listener: &TcpListener) -> bool {
    true
}

/// The addresses of a name, which has to be looked up again every time: it may appear late.
///
/// `localhost` is loopback, whatever the machine's list of hosts has for it.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(ips) = loopback(host) {
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port));
        return Ok(addresses.collect());
    }
    Ok((bare(host), port).to_socket_addrs()?.collect())
}

/// The addresses of a host that is on loopback, and known to be without being looked up.
fn loopback(host: &str) -> Option<Vec<IpAddr>> {
    let host = bare(host);
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback().then(|| vec![ip]),
        Err(_) => host
            .eq_ignore_ascii_case("localhost")
            .then(|| LOOPBACK.to_vec()),
    }
}

/// An IPv6 address may be written as in a URL, in brackets.
fn bare(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn loopback_listens_on_loopback_alone() {
        for host in ["127.0.0.1", "::1", "[::1]", "localhost", "LOCALHOST"] {
            let Interfaces::FirstOf(addresses) = Interfaces::of(host) else {
                panic!("{host}");
            };
            assert!(addresses.iter().all(IpAddr::is_loopback), "{host}");
        }
        for host in ["10.0.0.1", "node-7", "2001:db8::1"] {
            assert_eq!(Interfaces::of(host), Interfaces::Every);
        }
    }

    #[test]
    fn a_port_that_one_family_has_lost_is_in_use() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = everywhere(port).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn every_listener_is_reached_where_this_machine_says() {
        let listeners = [
            everywhere(0),
            on_loopback(),
            TcpListener::bind("0.0.0.0:0"),
            TcpListener::bind("127.0.0.1:0"),
        ];
        for listener in listeners {
            let listener = listener.unwrap();
            let connected = |address: SocketAddr| TcpStream::connect(address).is_ok();
            let own = own(&listener).unwrap();
            assert!(own.iter().any(|&address| connected(address)), "{own:?}");
        }
    }

    #[test]
    fn addresses_of_both_families_resolve() {
        let ip = |host| resolve(host, 7).unwrap()[0].ip().to_string();
        assert_eq!(ip("127.0.0.1"), "127.0.0.1");
        assert_eq!(ip("[::1]"), "::1");
        assert_eq!(ip("::1"), "::1");
    }

    #[test]
    fn a_port_in_use_is_named_as_such() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind("127.0.0.1", port, Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

//! Names and ports: where the store listens and where ranks find it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// How long a port may stay in use, by a job that is just ending, before that is an error.
const IN_USE: Duration = Duration::from_secs(5);

/// Where a rank of the same machine reaches a listener bound to `address`.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Where rank 0 listens, best first.
///
/// A name may mean another address here than elsewhere, and an address may be translated on the
/// way, so anything but loopback means every interface. `[::]` takes IPv4 too where the system
/// has not been told otherwise.
fn candidates(host: &str, port: u16) -> Vec<SocketAddr> {
    let host = bare(host);
    let ips = match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => vec![ip],
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            vec![
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ]
        }
        _ => vec![
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        ],
    };
    ips.into_iter()
        .map(|ip| SocketAddr::new(ip, port))
        .collect()
}

/// Binds the store's port; one that is in use may become free within a few seconds.
pub(super) fn bind(host: &str, port: u16, until: Instant) -> io::Result<TcpListener> {
    let until = until.min(Instant::now() + IN_USE);
    loop {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in candidates(host, port) {
            match TcpListener::bind(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
            // Ranks would find whoever has the port here before they found us elsewhere.
            if last.kind() == io::ErrorKind::AddrInUse {
                break;
            }
        }
        if last.kind() != io::ErrorKind::AddrInUse || Instant::now() >= until {
            return Err(last);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The addresses of a name, which has to be looked up again every time: it may appear late.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((bare(host), port).to_socket_addrs()?.collect())
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
    use super::*;

    #[test]
    fn loopback_listens_on_loopback_alone() {
        for host in ["127.0.0.1", "::1", "[::1]", "localhost"] {
            assert!(
                candidates(host, 1)
                    .iter()
                    .all(|address| address.ip().is_loopback())
            );
        }
        for host in ["10.0.0.1", "node-7", "2001:db8::1"] {
            assert!(
                candidates(host, 1)
                    .iter()
                    .all(|address| address.ip().is_unspecified())
            );
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

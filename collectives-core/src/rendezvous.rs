//! Where rank 0 hosts the control plane, as a card that any channel can carry to the others.
//!
//! A launcher that says who the ranks are need not say where they meet. What it takes is one short
//! text from rank 0 to everybody: a broadcast over MPI, or a [file](crate::file_store). The rounds
//! themselves go through the [store](crate::tcp_store), which answers while ranks are busy or gone.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Misuse, Result};
use crate::rank::Rank;
use crate::tcp_store::{Join, TcpStore, everywhere};

/// The first line of a card.
const MARK: &str = "collectives rendezvous 1";

/// The most addresses of one family that a card names.
const MAX_HOSTS: usize = 12;

/// Where ranks of one machine meet, by the address that it has.
const LOOPBACK: &str = "localhost";

/// Rank 0's side: a port that is bound, and the card that leads there.
#[derive(Debug)]
pub struct Host {
    listener: TcpListener,
    card: Card,
}

/// What the other ranks have to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    port: u16,
    token: String,
    machine: String,
    /// Rank 0's addresses, best first.
    hosts: Vec<String>,
}

impl Host {
    /// Binds a free port. The others find it at the addresses this machine has; where those are the
    /// wrong ones, the variable `COLLECTIVES_STORE_HOST` says which to take.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::System`] when no port can be bound.
    pub fn listen() -> Result<Self> {
        let told = std::env::var("COLLECTIVES_STORE_HOST").ok();
        Self::listen_as(told).map_err(|error| {
            let text = format!("the control plane cannot be hosted: {error}");
            Error::new(ErrorKind::System(text)).caused_by(error)
        })
    }

    fn listen_as(told: Option<String>) -> std::io::Result<Self> {
        let listener = everywhere(0)?;
        let number = || RandomState::new().hash_one(std::process::id());
        let card = Card {
            port: listener.local_addr()?.port(),
            token: format!("{:016x}{:016x}", number(), number()),
            // Who says which address to take means it for every rank.
            machine: if told.is_some() {
                String::new()
            } else {
                machine()
            },
            hosts: told.map_or_else(addresses, |host| vec![host]),
        };
        Ok(Self { listener, card })
    }

    /// What the others have to know.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Takes rank 0's place.
    ///
    /// # Errors
    ///
    /// Those of [`Join::join`].
    pub fn join(self, world_size: usize, deadline: Duration) -> Result<TcpStore> {
        let join = self.card.place(Rank(0), world_size, deadline);
        join.listener(self.listener).join()
    }
}

impl Card {
    /// The card as text, of a few lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![
            MARK.to_owned(),
            self.port.to_string(),
            self.token.clone(),
            self.machine.clone(),
        ];
        lines.extend(self.hosts.iter().cloned());
        lines.push("end\n".to_owned());
        lines.join("\n")
    }

    /// The card in a text.
    ///
    /// # Errors
    ///
    /// [`Misuse::Other`] when it is none, or not the whole of one.
    pub fn parse(text: &str) -> Result<Self> {
        let garbled = || Misuse::Other("a rendezvous card is garbled".to_owned());
        let mut lines = text.lines();
        let mut next = || lines.next().ok_or_else(garbled);
        if next()? != MARK {
            return Err(garbled().into());
        }
        let card = Self {
            port: next()?.parse().map_err(|_| garbled())?,
            token: next()?.to_owned(),
            machine: next()?.to_owned(),
            hosts: lines.map(str::to_owned).collect(),
        };
        match card.hosts.split_last() {
            Some((end, hosts)) if end == "end" && hosts.len() <= 2 * MAX_HOSTS + 1 => Ok(Self {
                hosts: hosts.to_vec(),
                ..card
            }),
            _ => Err(garbled().into()),
        }
    }

    /// Takes the place of a rank other than 0: on the loopback interface where rank 0 is on this
    /// machine, otherwise at the first of its addresses that answers.
    ///
    /// # Errors
    ///
    /// Those of [`Join::join`].
    pub fn join(&self, rank: Rank, world_size: usize, deadline: Duration) -> Result<TcpStore> {
        self.place(rank, world_size, deadline).join()
    }

    /// The place of a rank in the world that the card leads to.
    pub(crate) fn place(&self, rank: Rank, world_size: usize, deadline: Duration) -> Join {
        let hosts = match self.machine == machine() {
            true => vec![LOOPBACK.to_owned()],
            false => self.hosts.clone(),
        };
        Join::new(rank, world_size, LOOPBACK, self.port)
            .hosts(hosts)
            .token(self.token.clone())
            .deadline(deadline)
    }
}

/// What distinguishes machines, and network namespaces of one machine.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}

/// This machine's addresses that others may reach, and its name.
fn addresses() -> Vec<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let ipv4 = ipv4_addresses(&read("/proc/thread-self/net/fib_trie"));
    let ipv6 = ipv6_addresses(&read("/proc/thread-self/net/if_inet6"));
    let mut hosts = some_of(ipv4);
    hosts.extend(some_of(ipv6));
    let name = read("/proc/sys/kernel/hostname").trim().to_owned();
    hosts.extend(Some(name).filter(|name| !name.is_empty()));
    hosts
}

fn some_of<A: Ord + ToString>(mut addresses: Vec<A>) -> Vec<String> {
    addresses.sort();
    addresses.dedup();
    addresses.truncate(MAX_HOSTS);
    addresses.iter().map(ToString::to_string).collect()
}

/// The addresses in the kernel's routing table that are its own: a line with an address is followed
/// by one that says `host LOCAL`.
fn ipv4_addresses(table: &str) -> Vec<Ipv4Addr> {
    let pairs = table.lines().zip(table.lines().skip(1));
    let own = pairs.filter_map(|(address, kind)| {
        let address = address.trim().strip_prefix("|-- ")?;
        let ip: Ipv4Addr = address.parse().ok()?;
        (kind.contains("/32 host LOCAL") && !ip.is_loopback()).then_some(ip)
    });
    own.collect()
}

/// The addresses in the kernel's table of interfaces: 32 digits, index, length of the prefix, scope,
/// flags and name. Those of a link mean something only beside the name of the link.
fn ipv6_addresses(table: &str) -> Vec<Ipv6Addr> {
    let own = table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let digits = u128::from_str_radix(fields.next()?, 16).ok()?;
        let scope = fields.nth(2)?;
        (scope == "00").then_some(Ipv6Addr::from(digits))
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::bootstrap::Bootstrap;

    #[test]
    fn a_card_survives_the_way_and_a_part_of_one_is_refused() {
        let card = Card {
            port: 29500,
            token: "t".to_owned(),
            machine: "boot net:[1]".to_owned(),
            hosts: vec!["10.0.0.1".to_owned(), "node-0".to_owned()],
        };
        let text = card.to_text();
        assert_eq!(Card::parse(&text).unwrap(), card);
        for end in 0..text.len() - 1 {
            assert!(Card::parse(&text[..end]).is_err(), "{:?}", &text[..end]);
        }
        assert!(Card::parse("something else\n").is_err());
    }

    #[test]
    fn own_addresses_are_read_from_the_kernels_tables() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link \
                     BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(ipv4_addresses(table), [Ipv4Addr::new(10, 0, 0, 7)]);
        let table = "fd770000000000000000000000000001 02 40 00 82   cable0\n\
                     fe80000000000000d42de9fffe06a6f7 02 40 20 80   cable0\n\
                     00000000000000000000000000000001 01 80 10 80       lo\n";
        let expected: Ipv6Addr = "fd77::1".parse().unwrap();
        assert_eq!(ipv6_addresses(table), [expected]);
    }

    #[test]
    fn ranks_meet_by_card_also_at_an_address_that_was_told() {
        for told in [None, Some("localhost".to_owned())] {
            let host = Host::listen_as(told).unwrap();
            let card = host.card().clone();
            let deadline = Duration::from_secs(20);
            thread::scope(|scope| {
                let other = scope.spawn(move || {
                    let end = card.join(Rank(1), 2, deadline).unwrap();
                    end.all_gather("a", b"one", deadline).unwrap()
                });
                let end = host.join(2, deadline).unwrap();
                assert_eq!(end.all_gather("a", b"zero", deadline).unwrap().len(), 2);
                assert_eq!(other.join().unwrap().len(), 2);
            });
        }
    }

    #[test]
    fn a_host_that_is_not_there_is_named() {
        let card = Card {
            port: 1,
            token: String::new(),
            machine: "elsewhere".to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
        };
        let error = card
            .join(Rank(1), 2, Duration::from_millis(100))
            .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout { absent, .. } if *absent == [Rank(0)]));
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|text| text.contains("127.0.0.1")));
    }
}

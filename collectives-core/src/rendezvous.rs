//! Where rank 0 hosts the control plane, as a card that any channel can carry to the others.
//!
//! A launcher that says who the ranks are need not say where they meet. What it takes is one short
//! text from rank 0 to everybody: a broadcast over MPI, or a [file](crate::file_store). The rounds
//! themselves go through the [store](crate::tcp_store), which answers while ranks are busy or gone.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Misuse, Result};
use crate::rank::Rank;
use crate::tcp_store::{Join, TcpStore};

/// The first line of a card.
const MARK: &str = "collectives rendezvous 1";

/// The most addresses that a card names.
const MAX_HOSTS: usize = 16;

/// How long each address is tried at first.
const FIRST_TRY: Duration = Duration::from_millis(500);

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
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"))?;
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
        let join = self.card.place(Rank(0), world_size, "127.0.0.1", deadline);
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
            Some((end, hosts)) if end == "end" && hosts.len() <= MAX_HOSTS + 1 => Ok(Self {
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
    /// [`Timeout`](ErrorKind::Timeout) naming rank 0 when it was reached at none of them; its source
    /// names the addresses.
    pub fn join(&self, rank: Rank, world_size: usize, deadline: Duration) -> Result<TcpStore> {
        if self.machine == machine() {
            return self.place(rank, world_size, "127.0.0.1", deadline).join();
        }
        let begun = Instant::now();
        let mut turn = FIRST_TRY;
        loop {
            let mut last = None;
            for host in &self.hosts {
                let left = deadline.saturating_sub(begun.elapsed());
                match self.place(rank, world_size, host, turn.min(left)).join() {
                    Ok(joined) => return Ok(joined),
                    // It was reached, and it refuses.
                    Err(error) if !matches!(error.kind(), ErrorKind::Timeout { .. }) => {
                        return Err(error);
                    }
                    Err(error) => last = Some(error),
                }
            }
            turn *= 2;
            if begun.elapsed() >= deadline {
                return Err(self.unreached(last, deadline).on_rank(rank));
            }
        }
    }

    fn place(&self, rank: Rank, world_size: usize, host: &str, deadline: Duration) -> Join {
        Join::new(rank, world_size, host, self.port)
            .token(self.token.clone())
            .deadline(deadline)
    }

    fn unreached(&self, last: Option<Error>, deadline: Duration) -> Error {
        let tried = self.hosts.join(", ");
        let last = last.map_or_else(String::new, |error| format!(": {error}"));
        let text = format!("rank 0 was reached at none of its addresses ({tried}){last}");
        let kind = ErrorKind::Timeout {
            absent: vec![Rank(0)],
            waited: deadline,
        };
        Error::new(kind).caused_by(std::io::Error::other(text))
    }
}

/// What distinguishes machines, and network namespaces of one machine.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}

/// This machine's addresses that others may reach, and its name.
fn addresses() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut hosts: Vec<_> = local_addresses(&table).map(|ip| ip.to_string()).collect();
    hosts.sort();
    hosts.dedup();
    hosts.truncate(MAX_HOSTS);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    hosts.extend(
        [name.trim().to_owned()]
            .into_iter()
            .filter(|name| !name.is_empty()),
    );
    hosts
}

/// The addresses in the kernel's routing table that are its own: a line with an address is followed
/// by one that says `host LOCAL`.
fn local_addresses(table: &str) -> impl Iterator<Item = Ipv4Addr> {
    let pairs = table.lines().zip(table.lines().skip(1));
    pairs.filter_map(|(address, kind)| {
        let address = address.trim().strip_prefix("|-- ")?;
        let ip: Ipv4Addr = address.parse().ok()?;
        (kind.contains("/32 host LOCAL") && !ip.is_loopback()).then_some(ip)
    })
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
    fn own_addresses_are_read_from_the_routing_table() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link \
                     BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        let found: Vec<_> = local_addresses(table).collect();
        assert_eq!(found, [Ipv4Addr::new(10, 0, 0, 7)]);
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

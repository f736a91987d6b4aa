//! Whether the processes of the other ranks still run.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A handle on each peer's process, which no later process can be taken for.
#[derive(Debug)]
pub(super) struct Peers(Vec<Peer>);

#[derive(Debug)]
enum Peer {
    Own,
    Running(OwnedFd),
    /// It was gone, or hidden, when it was looked for.
    Unknown,
}

impl Peers {
    pub(super) fn new(pids: &[u32], own: usize) -> Self {
        let peer = |(rank, &pid): (usize, &u32)| {
            if rank == own || pid == std::process::id() {
                return Peer::Own;
            }
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            handle.map_or(Peer::Unknown, Peer::Running)
        };
        Self(pids.iter().enumerate().map(peer).collect())
    }

    /// A rank whose process has ended, other than those that may.
    pub(super) fn ended(&self, may_end: impl Fn(usize) -> bool) -> Option<usize> {
        let has_ended = |(rank, peer): (usize, &Peer)| peer.has_ended() && !may_end(rank);
        let mut peers = self.0.iter().enumerate();
        peers.position(has_ended)
    }
}

impl Peer {
    fn has_ended(&self) -> bool {
        let Self::Running(handle) = self else {
            return false;
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(handle, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let peers = Peers::new(&[std::process::id(), child.id()], 0);
        assert_eq!(peers.ended(|_| false), None);
        child.kill().unwrap();
        // A zombie has ended too: nobody need have waited for it.
        for _ in 0..500 {
            if peers.ended(|_| false).is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(peers.ended(|_| false), Some(1));
        assert_eq!(peers.ended(|rank| rank == 1), None);
        child.wait().unwrap();
    }
}

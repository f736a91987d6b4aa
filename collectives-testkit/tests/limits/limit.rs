//! One limit of a process, and how it is set while the process runs.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{Uid, set_thread_uid};

/// The environment variable that names the limit.
pub(crate) const VARIABLE: &str = "COLLECTIVES_TEST_LIMIT";
/// The rank whose process has it.
pub(crate) const RANK: &str = "COLLECTIVES_TEST_LIMITED_RANK";

/// The largest file where files are limited.
const FILE: u64 = 1 << 20;
/// Addresses and data beyond what the process has when it is limited: for stacks, the heap, and small
/// requests.
const ROOM: u64 = 256 << 20;
/// A user that nothing else on this machine runs as.
const USER: u32 = 64_917;

/// What there is little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `ulimit -f`.
    FileSize,
    /// `ulimit -n`: none is left.
    Descriptors,
    /// One is left.
    OneDescriptor,
    /// As many as rank 0 needs to listen, and to meet itself alone.
    FewDescriptors,
    /// `ulimit -v`, from before the first device on.
    Addresses,
    /// The same, once a device has reserved its own.
    LaterAddresses,
    /// `ulimit -d`.
    Data,
    /// `ulimit -u`.
    Threads,
}

impl Limit {
    pub(crate) const ALL: [Self; 8] = [
        Self::FileSize,
        Self::Descriptors,
        Self::OneDescriptor,
        Self::FewDescriptors,
        Self::Addresses,
        Self::LaterAddresses,
        Self::Data,
        Self::Threads,
    ];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    /// The limit that the environment names.
    pub(crate) fn named() -> Self {
        let name = std::env::var(VARIABLE).unwrap();
        let mut all = Self::ALL.into_iter();
        all.find(|limit| limit.name() == name).unwrap()
    }

    /// Whether it is set before a device is made.
    pub(crate) fn is_early(self) -> bool {
        self == Self::Addresses
    }

    /// Whether requests of any size meet it.
    pub(crate) fn is_of_number(self) -> bool {
        matches!(self, Self::Descriptors | Self::OneDescriptor)
    }

    /// Limits this process.
    pub(crate) fn set(self) {
        match self {
            Self::FileSize => set(Resource::Fsize, FILE),
            Self::Descriptors => set(Resource::Nofile, lowest_free()),
            Self::OneDescriptor => set(Resource::Nofile, lowest_free() + 1),
            Self::FewDescriptors => set(Resource::Nofile, lowest_free() + 4),
            Self::Addresses | Self::LaterAddresses => {
                set(Resource::As, status("VmSize:") + ROOM);
            }
            Self::Data => set(Resource::Data, status("VmData:") + ROOM),
            Self::Threads => {
                // Limits of threads do not count for root. Only this thread becomes another user.
                set(Resource::Nproc, 2);
                set_thread_uid(Uid::from_raw(USER)).unwrap();
            }
        }
    }

    /// Takes the limit away again.
    pub(crate) fn lift(self) {
        let resource = match self {
            Self::FileSize => Resource::Fsize,
            Self::Descriptors | Self::OneDescriptor | Self::FewDescriptors => Resource::Nofile,
            Self::Addresses | Self::LaterAddresses => Resource::As,
            Self::Data => Resource::Data,
            Self::Threads => Resource::Nproc,
        };
        let maximum = getrlimit(resource).maximum;
        let current = maximum;
        setrlimit(resource, Rlimit { current, maximum }).unwrap();
    }
}

/// Sets the soft limit, which may be lifted again.
fn set(resource: Resource, limit: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(limit);
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// The number that the next descriptor would have.
fn lowest_free() -> u64 {
    let file = File::open("/dev/null").unwrap();
    u64::try_from(file.as_raw_fd()).unwrap()
}

/// A size in the kernel's status of this process, in bytes.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse::<u64>().unwrap() << 10
}

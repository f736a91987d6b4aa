//! What a limit means for scratch: a large request is refused alike, a smaller one is served.

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;

use crate::limit::Limit;

/// Ranks of each world.
pub(crate) const RANKS: usize = 2;
/// The variables that name the policy, and what the ranks are.
pub(crate) const POLICY: &str = "COLLECTIVES_TEST_POLICY";
pub(crate) const KIND: &str = "COLLECTIVES_TEST_RANKS";
/// What a rank says whose large request was served.
pub(crate) const SERVED: &str = "served";

const FIRST: usize = 64 << 10;
const LARGE: usize = 1 << 30;
const SMALLER: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    Threads,
    Processes,
}

/// A limit, and what it is a limit to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) ranks: Ranks,
    pub(crate) policy: &'static str,
    pub(crate) limit: Limit,
}

impl Scenario {
    /// All that differ: no thread is made, and every rank that is a thread maps its own memory alone.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for ranks in [Ranks::Threads, Ranks::Processes] {
            for policy in ["geometric", "arena"] {
                let scenario = |limit| Self {
                    ranks,
                    policy,
                    limit,
                };
                all.extend(Limit::ALL.map(scenario).into_iter().filter(Self::is_one));
            }
        }
        all
    }

    fn is_one(&self) -> bool {
        match self.limit {
            Limit::Threads | Limit::FewDescriptors => false,
            Limit::OneDescriptor | Limit::LaterAddresses => self.ranks == Ranks::Processes,
            _ => true,
        }
    }

    /// What all ranks say. Memory of one process is no file, unless it may be mapped twice, and that of
    /// several is nothing else.
    pub(crate) fn expected(&self, limited: usize) -> String {
        let is_file = self.ranks == Ranks::Processes || self.policy == "arena";
        match self.limit {
            // Linux does not count pages whose addresses were reserved before they were data, until the
            // next request, so that any rank may be the first, or none.
            Limit::Data => String::new(),
            Limit::FileSize | Limit::Descriptors | Limit::OneDescriptor if !is_file => {
                SERVED.to_owned()
            }
            _ => format!("out of memory: rank {limited} could not get {LARGE} bytes"),
        }
    }

    pub(crate) fn name(&self) -> String {
        let Self {
            ranks,
            policy,
            limit,
        } = self;
        let text = format!("{ranks:?}_and_{policy}_under_a_limit_of_{limit:?}");
        let mut name = String::new();
        for letter in text.chars() {
            if letter.is_uppercase() && name.ends_with(|before: char| before.is_lowercase()) {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }
}

/// The error of the large request, as every rank should have it. `limited` says whether this rank is to
/// set the limit; `together` lets ranks of one process wait for each other.
pub(crate) fn serve<C: Communicator>(
    comm: C,
    limit: Limit,
    limited: bool,
    together: impl Fn(),
) -> Result<Vec<u8>> {
    let policy = std::env::var(POLICY).unwrap();
    let config = ScratchConfig::with_policy(policy);
    let mut handle = Collectives::new(comm, config.build()?);
    let stream = handle.device().create_stream()?;
    // Whatever is made once is there before the limit.
    let ones = vec![1_u8; SMALLER];
    let mut tensor = Buffer::from_slice(handle.device(), &ones, &stream)?;
    handle.reserve(&[Request::new(FIRST)])?;
    let set = limited && !limit.is_early();
    together();
    if set {
        limit.set();
    }
    together();
    let kept = handle.scratch().stats().mapped_bytes();
    let said = match handle.reserve(&[Request::new(LARGE)]) {
        Ok(_) => SERVED.to_owned(),
        Err(error) => {
            // What was idle may have been given up for it.
            let now = handle.scratch().stats().mapped_bytes();
            assert!(now <= kept, "what was refused is kept");
            error.kind().to_string()
        }
    };
    together();
    if set && limit.is_of_number() {
        limit.lift();
    }
    together();
    handle.reserve(&[Request::new(SMALLER)])?;
    handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
    let sum = u8::try_from(handle.world_size()).unwrap();
    assert!(tensor.read(&stream)?.iter().all(|&value| value == sum));
    drop(tensor);
    let _deferred = handle.close()?;
    Ok(said.into_bytes())
}

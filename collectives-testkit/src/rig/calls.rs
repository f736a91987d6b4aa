//! What a case calls again and again: handles, pools, leases.

use collectives_alloc::budget::Budget;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Options;
use collectives_alloc::policy::Policy;
use collectives_alloc::pool::Pool;
use collectives_alloc::registry;
use collectives_core::addr::Operand;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::memory::Memory;
use collectives_core::path::Staging;
use collectives_core::scratch::{Lease, Request, ScratchAllocator};

use super::{Handle, Rig};
use crate::case::Outcome;
use crate::planted;

impl Rig<'_> {
    /// The policy of this name, or what a planted bug makes of it.
    ///
    /// # Errors
    ///
    /// For a name that is not registered.
    pub fn policy(&self, config: &ScratchConfig) -> Result<Box<dyn Policy>> {
        let policy = registry::snapshot().build_policy(config)?;
        Ok(planted::policy::bugged(self.bug, self.rank(), policy))
    }

    /// The configuration in a TOML text.
    ///
    /// # Errors
    ///
    /// As [`ScratchConfig::from_toml`].
    pub fn config(&self, text: &str) -> Result<ScratchConfig> {
        planted::allocator::config(self.bug, text)
    }

    /// The options every case starts from: the world's deadline.
    #[must_use]
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        options.agree_deadline = self.setup.deadline;
        options
    }

    /// A pool of a policy, or what a planted bug makes of it.
    ///
    /// # Errors
    ///
    /// For a name that is not registered.
    pub fn pool(&self, policy: &str, options: Options) -> Result<Box<dyn ScratchAllocator>> {
        self.pool_of(&ScratchConfig::with_policy(policy), options)
    }

    /// As [`Rig::pool`], from a whole configuration.
    ///
    /// # Errors
    ///
    /// As [`ScratchConfig::build`].
    pub fn pool_of(
        &self,
        config: &ScratchConfig,
        options: Options,
    ) -> Result<Box<dyn ScratchAllocator>> {
        let policy = self.policy(config)?;
        let options = planted::allocator::options(self.bug, options);
        let pool = Box::new(Pool::new(policy, options));
        Ok(planted::allocator::bugged(self.bug, self.rank(), pool))
    }

    /// As [`Rig::pool_of`], charged to a budget.
    ///
    /// # Errors
    ///
    /// As [`ScratchConfig::build`].
    pub fn pool_within(
        &self,
        config: &ScratchConfig,
        options: Options,
        budget: Budget,
    ) -> Result<Box<dyn ScratchAllocator>> {
        let policy = self.policy(config)?;
        let options = planted::allocator::options(self.bug, options);
        let pool = Box::new(Pool::new(policy, options).with_budget(budget));
        Ok(planted::allocator::bugged(self.bug, self.rank(), pool))
    }

    /// A handle over a fresh communicator and a pool that always stages; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn collectives(&mut self, policy: &str) -> Result<Handle> {
        let options = self.options();
        self.collectives_with(policy, options)
    }

    /// As [`Rig::collectives`], with options.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn collectives_with(&mut self, policy: &str, options: Options) -> Result<Handle> {
        let comm = self.communicator()?;
        let scratch = self.pool(policy, options)?;
        Ok(self.handle(comm, scratch))
    }

    /// A handle that stages whenever it can.
    #[must_use]
    pub fn handle(
        &self,
        comm: Box<dyn Communicator>,
        scratch: Box<dyn ScratchAllocator>,
    ) -> Handle {
        let mut collectives = Collectives::new(comm, scratch);
        collectives.set_staging(Staging::Forced);
        collectives.set_deadline(self.setup.deadline);
        collectives
    }

    /// A lease on the case's first stream.
    ///
    /// # Errors
    ///
    /// As [`ScratchAllocator::acquire`].
    pub fn lease(
        &self,
        comm: &mut dyn Communicator,
        scratch: &mut dyn ScratchAllocator,
        bytes: usize,
    ) -> Result<Lease> {
        scratch.acquire(comm, Request::new(bytes), &self.stream, None)
    }

    /// Writes the first bytes of memory that only this rank uses.
    ///
    /// # Errors
    ///
    /// When they do not fit, and those of the device.
    pub fn fill(&self, memory: &Memory, bytes: &[u8]) -> Result<()> {
        let start = Operand::new(memory.addr(), memory.bytes()).slice(0, bytes.len())?;
        // SAFETY: The range lies in memory that is kept until the stream was waited for, and that
        // nobody else uses.
        unsafe { self.device.write(start.addr, bytes, &self.stream) }?;
        self.device.synchronize(&self.stream)
    }

    /// The first bytes of memory that only this rank uses.
    ///
    /// # Errors
    ///
    /// When it is shorter, and those of the device.
    pub fn contents(&self, memory: &Memory, bytes: usize) -> Result<Vec<u8>> {
        let start = Operand::new(memory.addr(), memory.bytes()).slice(0, bytes)?;
        let mut found = vec![0; bytes];
        // SAFETY: As in `fill`.
        unsafe { self.device.read(&mut found, start.addr, &self.stream) }?;
        Ok(found)
    }

    /// A part of some memory, as memory of its own.
    ///
    /// # Errors
    ///
    /// When it leaves the memory.
    pub fn part(&self, memory: &Memory, offset: usize, bytes: usize) -> Result<Memory> {
        let within = Operand::new(memory.addr(), memory.bytes()).slice(offset, bytes)?;
        let whole = memory.clone();
        // SAFETY: The range lies in `whole`, which the hook keeps until it runs.
        Ok(unsafe { Memory::new(memory.device(), within.addr, bytes, move |_| drop(whole)) })
    }

    /// Ends an allocator and its communicator.
    ///
    /// # Errors
    ///
    /// Those of `close` and `shutdown`.
    pub fn close(
        &self,
        mut comm: Box<dyn Communicator>,
        mut scratch: Box<dyn ScratchAllocator>,
    ) -> Outcome {
        let _deferred = scratch.close(&mut *comm)?;
        let _deferred = comm.shutdown()?;
        Ok(())
    }

    /// Ends a handle.
    ///
    /// # Errors
    ///
    /// As [`Collectives::close`].
    pub fn finish<C: Communicator, A: ScratchAllocator>(
        &self,
        handle: Collectives<C, A>,
    ) -> Outcome {
        let _deferred = handle.close()?;
        Ok(())
    }
}

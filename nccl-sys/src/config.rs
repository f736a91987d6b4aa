//! Versioned structures, in the oldest layout that has what is needed.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;

/// `ncclConfig_t` as NCCL 2.27 has it.
///
/// A library reads `min(size, its own size)` bytes and sets every field that is newer than
/// `version` to its default, so this layout means the same to 2.27 and to all later versions. The
/// version must never be the library's own: fields that this layout lacks would then be read from
/// its padding.
#[derive(Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// Whether calls wait until they have finished.
    pub blocking: c_int,
    /// Thread-block cluster size.
    pub cga_cluster_size: c_int,
    /// The fewest thread blocks of a kernel.
    pub min_ctas: c_int,
    /// The most thread blocks of a kernel.
    pub max_ctas: c_int,
    /// The network module.
    pub net_name: *const c_char,
    /// Whether children of `ncclCommSplit` share resources.
    pub split_share: c_int,
    /// The network traffic class.
    pub traffic_class: c_int,
    /// A name for logs.
    pub comm_name: *const c_char,
    /// Whether in-network reduction is used.
    pub collnet_enable: c_int,
    /// What the number of thread blocks is chosen for.
    pub cta_policy: c_int,
    /// Whether children of `ncclCommShrink` share resources.
    pub shrink_share: c_int,
    /// Thread blocks of multicast kernels.
    pub nvls_ctas: c_int,
}

/// `ncclCollConfig_t` as NCCL 2.31 has it: settings of one call.
#[derive(Debug)]
#[repr(C)]
pub struct CollConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    ext: *mut c_void,
    /// The fewest thread blocks.
    pub min_ctas: c_int,
    /// The most thread blocks.
    pub max_ctas: c_int,
    /// Thread blocks of multicast kernels.
    pub nvls_ctas: c_int,
    /// Thread-block cluster size; equal in all calls of a group.
    pub cga_cluster_size: c_int,
    /// Names of algorithms that may be used, or their prefixes; null for automatic selection.
    pub alg_selection: *const c_char,
    /// Whether a selection that cannot be had is an error; 1 unless changed.
    pub force_alg_selection: c_int,
    /// What the number of thread blocks is chosen for.
    pub cta_policy: c_int,
    /// For profilers.
    pub user_profiler_tag: u64,
}

impl Config {
    /// `NCCL_CONFIG_UNDEF_INT`: the library decides.
    pub const UNDEFINED: c_int = c_int::MIN;

    /// Everything left to the library.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: 22_700,
            blocking: Self::UNDEFINED,
            cga_cluster_size: Self::UNDEFINED,
            min_ctas: Self::UNDEFINED,
            max_ctas: Self::UNDEFINED,
            net_name: ptr::null(),
            split_share: Self::UNDEFINED,
            traffic_class: Self::UNDEFINED,
            comm_name: ptr::null(),
            collnet_enable: Self::UNDEFINED,
            cta_policy: Self::UNDEFINED,
            shrink_share: Self::UNDEFINED,
            nvls_ctas: Self::UNDEFINED,
        }
    }
}

impl CollConfig {
    /// Everything left to the library.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: 23_100,
            ext: ptr::null_mut(),
            min_ctas: Config::UNDEFINED,
            max_ctas: Config::UNDEFINED,
            nvls_ctas: Config::UNDEFINED,
            cga_cluster_size: Config::UNDEFINED,
            alg_selection: ptr::null(),
            force_alg_selection: 1,
            cta_policy: Config::UNDEFINED,
            user_profiler_tag: 0,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for CollConfig {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Config>() == 72);
    assert!(offset_of!(Config, net_name) == 32);
    assert!(offset_of!(Config, comm_name) == 48);
    assert!(offset_of!(Config, nvls_ctas) == 68);
    assert!(size_of::<CollConfig>() == 64);
    assert!(offset_of!(CollConfig, alg_selection) == 40);
    assert!(offset_of!(CollConfig, user_profiler_tag) == 56);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_configuration_leaves_everything_to_the_library() {
        let config = Config::new();
        assert_eq!(
            (config.size, config.magic, config.version),
            (72, 0xcafe_beef, 22_700)
        );
        let ints = [
            config.blocking,
            config.cga_cluster_size,
            config.min_ctas,
            config.max_ctas,
            config.split_share,
            config.traffic_class,
            config.collnet_enable,
            config.cta_policy,
            config.shrink_share,
            config.nvls_ctas,
        ];
        assert!(ints.iter().all(|&int| int == i32::MIN));
        assert!(config.net_name.is_null() && config.comm_name.is_null());
        let call = CollConfig::new();
        assert_eq!(
            (call.size, call.version, call.force_alg_selection),
            (64, 23_100, 1)
        );
    }
}

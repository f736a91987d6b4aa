//! What the policies promise, for every sequence of requests; no ranks and no memory in sight.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use collectives_alloc::arena::Arena;
use collectives_alloc::exact::Exact;
use collectives_alloc::geometric::Geometric;
use collectives_alloc::geometric_class::GeometricClass;
use collectives_alloc::policy::{Ask, Decision, Policy, SlotView};
use collectives_alloc::replace::Replace;
use collectives_alloc::reserved::Reserved;
use proptest::prelude::*;
use rstest::rstest;

/// A domain whose leases end before the next request, and whose retired slots go at once.
#[derive(Debug)]
struct Domain<'a> {
    policy: &'a dyn Policy,
    granule: usize,
    overhead: usize,
    slots: Vec<SlotView>,
    retired: Vec<usize>,
    registrations: usize,
    largest: usize,
}

impl<'a> Domain<'a> {
    fn new(policy: &'a dyn Policy, granule: usize) -> Self {
        Self {
            policy,
            granule,
            overhead: 0,
            slots: Vec::new(),
            retired: Vec::new(),
            registrations: 0,
            largest: 0,
        }
    }

    fn ask(&self, bytes: usize) -> Ask {
        Ask {
            bytes,
            granule: self.granule,
            overhead: self.overhead,
        }
    }

    fn request(&mut self, bytes: usize) -> Decision {
        let decision = self.policy.decide(&self.slots, &self.ask(bytes));
        self.largest = self.largest.max(bytes);
        match decision {
            Decision::Hit(index) => assert!(self.slots[index].capacity >= bytes),
            Decision::Grow { capacity, retire } => {
                assert!(capacity >= bytes);
                if retire {
                    self.retired
                        .extend(self.slots.drain(..).map(|slot| slot.capacity));
                }
                let leased = false;
                self.slots.push(SlotView { capacity, leased });
                self.registrations += 1;
            }
            Decision::Extend { slot, capacity } => {
                assert!(capacity >= bytes);
                if let Some(index) = slot {
                    let old = self.slots.remove(index);
                    assert!(!old.leased && old.capacity < capacity);
                }
                let leased = false;
                self.slots.push(SlotView { capacity, leased });
                self.registrations += 1;
            }
            other => panic!("{other:?}"),
        }
        decision
    }

    fn capacity(&self) -> usize {
        self.slots.iter().map(|slot| slot.capacity).sum()
    }

    fn mapped(&self) -> usize {
        let mapped = |capacity: usize| (capacity + self.overhead).next_multiple_of(self.granule);
        self.slots.iter().map(|slot| mapped(slot.capacity)).sum()
    }

    fn promised(&self) -> usize {
        self.policy.bound(self.largest, self.granule).unwrap()
    }
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    // Uniform in the logarithm, so that small and large ones meet.
    let size = (0..27_u32, any::<usize>())
        .prop_map(|(octave, bits)| (1 << octave) | (bits % (1 << octave)));
    prop::collection::vec(size, 1..60)
}

fn granules() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1_usize, 4096, 65_536, 2 << 20])
}

fn ratio() -> impl Strategy<Value = f64> {
    prop_oneof![1.01..=4.0_f64, Just(2.0), Just(4.0), Just(1.25)]
}

fn policies() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Exact::new()),
        Box::new(Replace::default()),
        Box::new(Geometric::default()),
        Box::new(Geometric::new(1.3).unwrap()),
        Box::new(GeometricClass::default()),
        Box::new(GeometricClass::new(4).unwrap()),
        Box::new(Reserved::new(3 << 20, 2.0).unwrap()),
        Box::new(Arena::new(Arena::DEFAULT_GROWTH).unwrap()),
        Box::new(Arena::new(1.0).unwrap()),
    ]
}

/// What was kept, the largest request, and how many slots there were.
type Worst = (usize, usize, usize);

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn ratio_of((kept, largest, _): Worst) -> f64 {
    kept as f64 / largest as f64
}

/// The adversary that the bounds are tight for: one byte more than the largest slot, again and
/// again. Returns the moment when most was kept over the largest request, which the first slots, of
/// a few granules, say nothing about.
fn adversary(policy: &dyn Policy, granule: usize) -> Worst {
    let mut domain = Domain::new(policy, granule);
    let (mut bytes, mut worst) = (1, (0, 1, 0));
    // One that grows by what is missing needs a registration a granule.
    while bytes < 1 << 36 && domain.registrations < 4096 {
        domain.request(bytes);
        assert!(domain.capacity() <= domain.promised(), "{domain:?}");
        let now = (domain.capacity(), domain.largest, domain.slots.len());
        if domain.largest >= 1000 * granule && ratio_of(now) > ratio_of(worst) {
            worst = now;
        }
        let largest = domain.slots.iter().map(|slot| slot.capacity).max();
        bytes = largest.unwrap() + 1;
    }
    worst
}

proptest! {
    // invariant 1
    #[test]
    fn geometric_with_growth_two_keeps_less_than_four_times_the_largest(
        sizes in sizes(),
        granule in granules(),
    ) {
        let policy = Geometric::default();
        let mut domain = Domain::new(&policy, granule);
        for bytes in sizes {
            domain.request(bytes);
            let slots = domain.slots.len();
            prop_assert!(domain.capacity() < 4 * domain.largest.max(granule) + granule * slots);
        }
    }

    // invariant 2
    #[test]
    fn geometric_keeps_its_promise_for_every_growth(
        sizes in sizes(),
        granule in granules(),
        ratio in ratio(),
        overhead in 0..4096_usize,
    ) {
        let policy = Geometric::new(ratio).unwrap();
        let mut domain = Domain::new(&policy, granule);
        domain.overhead = overhead.min(granule - 1);
        for bytes in sizes {
            domain.request(bytes);
            prop_assert!(domain.capacity() <= domain.promised());
            let per_slot = domain.slots.len() * (granule + domain.overhead);
            prop_assert!(domain.mapped() <= domain.promised() + per_slot);
        }
    }

    // invariant 3
    #[test]
    fn geometric_class_keeps_at_most_one_slot_a_class(
        sizes in sizes(),
        classes in 1..=8_u32,
    ) {
        let policy = GeometricClass::new(classes).unwrap();
        let mut domain = Domain::new(&policy, 4096);
        for bytes in sizes {
            domain.request(bytes);
            prop_assert!(domain.capacity() <= domain.promised());
            let (largest, k) = (domain.largest as f64, f64::from(classes));
            let closed = if classes == 1 {
                4.0 * largest
            } else {
                (1.5 * (k + 1.0) + 1.0 / k) * largest
            };
            // Classes are whole bytes, which costs up to one each.
            let rounding = 28.0 * k;
            prop_assert!(domain.promised() as f64 <= closed + rounding);
        }
    }

    // invariant 4
    #[test]
    fn reserved_keeps_its_promise(
        sizes in sizes(),
        granule in granules(),
        ratio in ratio(),
        presized in 1..1_usize << 27,
    ) {
        let policy = Reserved::new(presized, ratio).unwrap();
        let mut domain = Domain::new(&policy, granule);
        for bytes in &sizes {
            domain.request(*bytes);
            prop_assert!(domain.capacity() <= domain.promised());
        }
        let policy = Reserved::new(presized, 2.0).unwrap();
        let mut domain = Domain::new(&policy, granule);
        for bytes in sizes {
            domain.request(bytes);
            let formula = presized.max((4 * domain.largest).saturating_sub(presized));
            prop_assert!(domain.capacity() <= formula + granule);
            prop_assert!(domain.promised() <= formula + granule + 1);
        }
    }

    #[test]
    fn replace_keeps_growth_times_the_largest(
        sizes in sizes(),
        granule in granules(),
        ratio in ratio(),
    ) {
        let policy = Replace::new(ratio).unwrap();
        let mut domain = Domain::new(&policy, granule);
        for bytes in sizes {
            domain.request(bytes);
            prop_assert_eq!(domain.slots.len(), 1);
            prop_assert!(domain.capacity() <= domain.promised());
        }
    }

    // invariant 5
    #[test]
    fn a_workload_of_one_size_maps_that_size_in_whole_granules(
        bytes in 1..1_usize << 30,
        granule in granules(),
    ) {
        let policies: [&dyn Policy; 3] = [
            &Exact::new(),
            &Geometric::default(),
            &Replace::default(),
        ];
        for policy in policies {
            let mut domain = Domain::new(policy, granule);
            for _ in 0..3 {
                domain.request(bytes);
            }
            prop_assert_eq!(domain.mapped(), bytes.next_multiple_of(granule));
            prop_assert_eq!(domain.registrations, 1);
        }
    }

    // invariant 6
    #[test]
    fn geometric_registers_logarithmically_often(sizes in sizes(), ratio in ratio()) {
        let policy = Geometric::new(ratio).unwrap();
        let mut domain = Domain::new(&policy, 4096);
        for &bytes in &sizes {
            domain.request(bytes);
        }
        let range = domain.largest as f64 / sizes[0] as f64;
        let most = 1.0 + (range.ln() / ratio.ln()).max(0.0).ceil();
        prop_assert!(domain.registrations as f64 <= most + 1e-9, "{} {most}", domain.registrations);
    }

    // invariant 8
    #[test]
    fn a_trace_swept_twice_registers_nothing_the_second_time(sizes in sizes()) {
        for policy in policies() {
            let mut domain = Domain::new(&*policy, 4096);
            for &bytes in &sizes {
                domain.request(bytes);
            }
            let first = domain.registrations;
            for &bytes in &sizes {
                domain.request(bytes);
            }
            prop_assert_eq!(domain.registrations, first, "{}", policy.name());
        }
    }

    // invariant 15
    #[test]
    fn a_hit_is_the_smallest_free_slot_the_policy_may_reuse(
        slots in prop::collection::vec((1..64_usize, any::<bool>()), 0..12),
        bytes in 1..64_usize,
    ) {
        let slots: Vec<_> = slots
            .into_iter()
            .map(|(capacity, leased)| SlotView { capacity, leased })
            .collect();
        let ask = Ask { bytes, granule: 1, overhead: 0 };
        for policy in policies() {
            let may_reuse = |slot: &&SlotView| match policy.name() {
                "exact" => slot.capacity == bytes,
                "geometric-class" => {
                    let class = match policy.decide(&[], &ask) {
                        Decision::Grow { capacity, .. } => capacity,
                        other => panic!("{other:?}"),
                    };
                    slot.capacity == class
                }
                _ => slot.capacity >= bytes,
            };
            let free = slots.iter().filter(|slot| !slot.leased).filter(may_reuse);
            let best = free.map(|slot| slot.capacity).min();
            match policy.decide(&slots, &ask) {
                Decision::Hit(index) => {
                    prop_assert!(!slots[index].leased);
                    prop_assert_eq!(Some(slots[index].capacity), best);
                }
                Decision::Grow { capacity, .. } | Decision::Extend { capacity, .. } => {
                    prop_assert_eq!(best, None);
                    prop_assert!(capacity >= bytes);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    // invariant 33
    #[test]
    fn decide_is_a_function_of_its_arguments(
        slots in prop::collection::vec((1..1_usize << 40, any::<bool>()), 0..8),
        bytes in 1..1_usize << 40,
        granule in granules(),
    ) {
        let view = |&(capacity, leased): &(usize, bool)| SlotView { capacity, leased };
        let (here, there): (Vec<_>, Vec<_>) =
            (slots.iter().map(view).collect(), slots.iter().map(view).collect());
        let ask = Ask { bytes, granule, overhead: 0 };
        for (mine, theirs) in policies().iter().zip(policies()) {
            prop_assert_eq!(mine.decide(&here, &ask), theirs.decide(&there, &ask));
            prop_assert_eq!(mine.decide(&here, &ask), mine.decide(&here, &ask));
            prop_assert_eq!(mine.digest(), theirs.digest());
        }
    }

    #[test]
    fn leases_live_at_once_stand_beside_each_other(
        bytes in 1..1_usize << 24,
        count in 1..20_usize,
    ) {
        for policy in [&Geometric::default() as &dyn Policy, &Replace::default()] {
            let mut domain = Domain::new(policy, 4096);
            for _ in 0..count {
                domain.request(bytes);
                for slot in &mut domain.slots {
                    slot.leased = true;
                }
            }
            prop_assert_eq!(domain.mapped(), count * bytes.next_multiple_of(4096));
            prop_assert!(domain.retired.is_empty());
        }
    }
}

// invariants 1 to 4
#[test]
fn the_bounds_hold_against_the_adversary() {
    for granule in [1, 4096, 2 << 20] {
        for ratio in [1.01, 1.25, 1.5, 2.0, 3.0, 4.0] {
            adversary(&Geometric::new(ratio).unwrap(), granule);
            adversary(&Replace::new(ratio).unwrap(), granule);
            adversary(&Reserved::new(5 << 20, ratio).unwrap(), granule);
            adversary(&Arena::new(ratio).unwrap(), granule);
        }
        adversary(&Arena::new(1.0).unwrap(), granule);
        for classes in 1..=8 {
            adversary(&GeometricClass::new(classes).unwrap(), granule);
        }
    }
}

// invariants 2, 3 and 51
#[rstest]
// What one slot is rounded up by, all later ones grow from: with so many of them it adds up to two.
#[case::growth_1_25(&Geometric::new(1.25).unwrap(), 6.25, 2)]
#[case::growth_1_5(&Geometric::new(1.5).unwrap(), 4.5, 1)]
#[case::growth_2(&Geometric::default(), 4.0, 1)]
#[case::growth_4(&Geometric::new(4.0).unwrap(), 16.0 / 3.0, 1)]
#[case::one_class(&GeometricClass::default(), 4.0, 1)]
#[case::two_classes(&GeometricClass::new(2).unwrap(), 5.0, 1)]
#[case::four_classes(&GeometricClass::new(4).unwrap(), 7.75, 1)]
#[case::eight_classes(&GeometricClass::new(8).unwrap(), 13.625, 1)]
#[case::arena(&Arena::new(1.125).unwrap(), 1.125, 1)]
#[case::arena_by_what_is_missing(&Arena::new(1.0).unwrap(), 1.0, 1)]
fn the_adversary_reaches_the_closed_forms(
    #[case] policy: &dyn Policy,
    #[case] closed: f64,
    #[case] granules_a_slot: usize,
    #[values(4096, 2 << 20)] granule: usize,
) {
    let worst = adversary(policy, granule);
    let (kept, largest, slots) = worst;
    assert!(slots > 0, "nothing was ever kept");
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^52")]
    let (kept, expected) = (kept as f64, closed * largest as f64);
    // One more for what would have come before the first slot.
    #[expect(clippy::cast_precision_loss, reason = "a few granules")]
    let granules = ((granules_a_slot * slots + 1) * granule) as f64;
    assert!(
        (kept - expected).abs() <= granules,
        "{} and not {closed} of {largest}, {slots} slots",
        ratio_of(worst)
    );
}

proptest! {
    // invariant 51
    #[test]
    fn an_arena_keeps_growth_times_the_largest_and_a_granule(
        sizes in sizes(),
        granule in granules(),
        growth in prop_oneof![Just(1.0), Just(1.125), 1.01..=4.0_f64],
        overhead in 0..4096_usize,
    ) {
        let policy = Arena::new(growth).unwrap();
        let mut domain = Domain::new(&policy, granule);
        domain.overhead = overhead.min(granule - 1);
        for bytes in sizes {
            domain.request(bytes);
            prop_assert_eq!(domain.slots.len(), 1);
            prop_assert!(domain.capacity() <= domain.promised());
            #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^52")]
            let (mapped, most) = (domain.mapped() as f64, growth * domain.largest as f64);
            let granule = granule as f64;
            prop_assert!(mapped <= (most / granule).ceil() * granule + granule);
        }
    }
}

/// Bytes of the seed's trace: decode batches, then the prompts twice, padded to 64 tokens.
fn seed_trace() -> Vec<usize> {
    let batches = [1, 8, 64, 128, 256];
    let prompts = [
        37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
    ];
    let tokens = batches.iter().chain(&prompts).chain(&prompts);
    tokens
        .map(|tokens: &usize| tokens.next_multiple_of(64) * 10_240)
        .collect()
}

// invariant 10
#[rstest]
#[case::exact(&Exact::new(), 51_118_080, 62_914_560, 12)]
#[case::geometric_class(&GeometricClass::default(), 15_728_640, 16_777_216, 4)]
#[case::geometric(&Geometric::default(), 14_680_064, 14_680_064, 3)]
#[case::reserved(&Reserved::new(7_864_320, 2.0).unwrap(), 8_388_608, 8_388_608, 1)]
#[case::arena(&Arena::new(1.125).unwrap(), 8_388_608, 8_388_608, 4)]
fn the_seed_sweep_comes_to_the_published_figures(
    #[case] policy: &dyn Policy,
    #[case] capacity: usize,
    #[case] mapped: usize,
    #[case] registrations: usize,
) {
    let mut domain = Domain::new(policy, 2 << 20);
    for bytes in seed_trace() {
        domain.request(bytes);
    }
    assert_eq!(domain.capacity(), capacity);
    assert_eq!(domain.mapped(), mapped);
    assert_eq!(domain.registrations, registrations);
}

// invariant 10
#[test]
fn replace_keeps_as_much_as_geometric_while_graphs_own_the_old_slots() {
    let policy = Replace::default();
    let mut domain = Domain::new(&policy, 2 << 20);
    for bytes in seed_trace() {
        domain.request(bytes);
    }
    assert_eq!(domain.retired, [2 << 20, 4 << 20]);
    assert_eq!(domain.capacity(), 8 << 20);
}

// invariant 16
#[test]
fn a_request_that_overflows_is_refused() {
    for policy in policies() {
        for bytes in [usize::MAX, usize::MAX - 4096, usize::MAX - (2 << 20) + 2] {
            let ask = Ask {
                bytes,
                granule: 2 << 20,
                overhead: 0,
            };
            assert_eq!(
                policy.decide(&[], &ask),
                Decision::Refuse,
                "{}",
                policy.name()
            );
        }
    }
}

// invariant 47
#[test]
fn parameters_outside_their_range_are_rejected() {
    for growth in [1.0, 0.0, 4.1, -2.0, f64::NAN] {
        assert!(Geometric::new(growth).is_err());
        assert!(Replace::new(growth).is_err());
        assert!(Reserved::new(1, growth).is_err());
    }
    assert!(GeometricClass::new(0).is_err());
}

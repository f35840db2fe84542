//! The one wasmtime engine: deterministic, interruptible, with a pool of preallocated slots.

use crate::RuntimeConfig;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Memories and tables that one slot of the pool stands for. What a component needs beyond that, it pays for with
/// more slots.
pub(crate) const MEMORIES_PER_SLOT: u32 = 1;
pub(crate) const TABLES_PER_SLOT: u32 = 2;
/// What one component may need at most.
pub(crate) const MAX_MEMORIES: u32 = 8;
pub(crate) const MAX_TABLES: u32 = 16;
/// Core instances are only counted, never reserved: large interpreters come with two dozen shims.
const MAX_CORE_INSTANCES: u32 = 64;

/// Free slots that keep their pages for the next guest, and how much of each: 128 MiB at the very most.
const WARM_SLOTS: u32 = 64;
const RESIDENT_BYTES: usize = 2 << 20;

/// Stack of a guest, as wasm sees it, and of the fiber it runs on.
const WASM_STACK_BYTES: usize = 1 << 20;
const FIBER_STACK_BYTES: usize = 2 << 20;

/// Start the engine. Says whether it got its pool: where address space is limited, instances are made on demand.
///
/// `concurrent` is for guests that drive many rollouts in one instance.
pub(crate) fn start(config: &RuntimeConfig, concurrent: bool) -> Result<(Engine, bool), String> {
    if config.pooling {
        match Engine::new(&settings(Some(pool(config)), concurrent)) {
            Ok(engine) => return Ok((engine, true)),
            Err(error) => tracing::warn!(
                reason = %error,
                "no address space for the pool of plugin instances, so they are made on demand (about twice the cost of a call)"
            ),
        }
    }
    match Engine::new(&settings(None, concurrent)) {
        Ok(engine) => Ok((engine, false)),
        Err(error) => Err(format!("{error:#}")),
    }
}

fn settings(pool: Option<PoolingAllocationConfig>, concurrent: bool) -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true);
    // Most stores are called into by one call at a time, and the bookkeeping for more costs a quarter of a small call
    // (98 µs of processor time with it, 75 without).
    config.concurrency_support(concurrent);
    config.wasm_component_model_async(concurrent);
    // A spinning guest is stopped by the ticker; fuel would cost up to a third of its speed.
    config.epoch_interruption(true);
    // Same component, input and seed: same result.
    config.cranelift_nan_canonicalization(true);
    config.relaxed_simd_deterministic(true);
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.async_stack_size(FIBER_STACK_BYTES);
    config.memory_init_cow(true);
    if let Some(pool) = pool {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    config
}

fn pool(config: &RuntimeConfig) -> PoolingAllocationConfig {
    let slots = config.slots;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(MAX_CORE_INSTANCES))
        .total_memories(slots.saturating_mul(MEMORIES_PER_SLOT))
        .total_tables(slots.saturating_mul(TABLES_PER_SLOT))
        .total_stacks(slots)
        .max_core_instances_per_component(MAX_CORE_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .max_memories_per_module(MAX_MEMORIES)
        .max_tables_per_module(MAX_TABLES)
        .max_memory_size(usize::try_from(config.max_memory_bytes).unwrap_or(usize::MAX))
        .table_elements(100_000)
        .max_component_instance_size(1 << 20)
        .max_core_instance_size(1 << 20)
        .max_unused_warm_slots(slots.min(WARM_SLOTS));
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        // The kernel says which pages a guest wrote, so a slot is cleaned by rewriting those instead of giving all
        // pages back and faulting them in again: a small call costs 45 µs of processor time with it, 75 without.
        pool.pagemap_scan(wasmtime::Enabled::Yes)
            .linear_memory_keep_resident(RESIDENT_BYTES)
            .table_keep_resident(RESIDENT_BYTES);
    }
    pool
}

//! Every operation at the shapes of a 135 M model. Items are FLOPs of products and attention, bytes of the rest;
//! `cargo bench -p slime-kernels -- 'nt 16'` runs some. `versus_torch.py` compares with PyTorch.

mod cases;

use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

fn names() -> Vec<String> {
    cases::cases().into_iter().map(|case| case.name).collect()
}

#[divan::bench(args = names(), max_time = 1)]
fn cpu(bencher: divan::Bencher<'_, '_>, name: &String) {
    let case = cases::cases()
        .into_iter()
        .find(|case| case.name == *name)
        .expect("one of the names");
    let mut run = (case.make)();
    bencher
        .counter(ItemsCount::new(case.work as u64))
        .bench_local(&mut run);
}

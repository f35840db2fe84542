//! Serve a model directory: `cargo run --release -p slime-engine --example serve -- DIR [PORT]`.
//! The program's own verb is `slime-host serve`; this one has no configuration and no logs.

use slime_engine::{Engine, EngineConfig, serve};
use slime_kernels::Cpu;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("give a model directory")?;
    let port: u16 = args.next().map_or(Ok(0), |p| p.parse())?;
    let engine = Engine::open(
        Arc::new(Cpu::<f32>::new()),
        Path::new(&dir),
        EngineConfig::default(),
    )?;
    let server = serve(engine, ([127, 0, 0, 1], port).into()).await?;
    eprintln!("serving {dir} on {}", server.url());
    Ok(server.wait().await?)
}

"""An engine slowed down: a TCP relay that holds back every piece of an answer (stdlib only).

    python slow_engine.py --listen 8801 --engine 127.0.0.1:8800 --delay-ms 20

A streamed answer comes one token a piece, so every token costs the delay, all requests at once: the shape of a large model
whose decoding is bound by latency. Weight updates and probes are relayed the same way and cost next to nothing.
"""

import argparse
import asyncio


async def relay(reader, writer, delay):
    try:
        while piece := await reader.read(1 << 16):
            if delay:
                await asyncio.sleep(delay)
            writer.write(piece)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def main():
    args = argparse.ArgumentParser()
    args.add_argument("--listen", type=int, required=True)
    args.add_argument("--engine", required=True)
    args.add_argument("--delay-ms", type=float, default=20.0)
    args = args.parse_args()
    host, port = args.engine.rsplit(":", 1)

    async def serve(reader, writer):
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(relay(reader, up_writer, 0.0), relay(up_reader, writer, args.delay_ms / 1e3))

    server = await asyncio.start_server(serve, "127.0.0.1", args.listen)
    async with server:
        await server.serve_forever()


asyncio.run(main())

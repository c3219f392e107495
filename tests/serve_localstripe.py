"""Serves localstripe, a fake of Stripe's API that is not ours, on a loopback port of its own.

    python tests/serve_localstripe.py FOLDER      keeps its state there, and tells its port in FOLDER/port

localstripe's own command would listen on every address, at a port that must be known before, and keep its state in a
file that all of them share.
"""

import asyncio
import builtins
import os
import sys

from aiohttp import web
from localstripe import resources
from localstripe.server import app

folder = sys.argv[1]
resources.open = lambda path, mode: builtins.open(os.path.join(folder, os.path.basename(path)), mode)


async def main():
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with builtins.open(os.path.join(folder, "port.new"), "w") as file:
        file.write(str(runner.addresses[0][1]))
    os.rename(os.path.join(folder, "port.new"), os.path.join(folder, "port"))
    await asyncio.Event().wait()


asyncio.run(main())

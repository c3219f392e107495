// graphile-worker: two chained jobs a payment, with its local queue, which fetches jobs in batches.
import { Logger, makeWorkerUtils, run as start } from 'graphile-worker';
import { finish, flows, move, payments, url } from '../common.mjs';

const quiet = new Logger(() => (level, message) => { if (level === 'error') console.error(message); });
const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
await utils.migrate();

let left = 0;
let done;
await start({
  logger: quiet,
  noHandleSignals: true,
  preset: {
    worker: {
      connectionString: url,
      maxPoolSize: 16,
      concurrentJobs: 16,
      pollInterval: 100,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
  taskList: {
    charge: async ({ id }, helpers) => {
      await move([id], 'WAIT_PAY', 'PAYED');
      await helpers.addJob('business', { id });
    },
    business: async ({ id }) => {
      await move([id], 'PAYED', 'BIZ_SUCCESS');
      left -= 1;
      if (left === 0) done();
    },
  },
});

async function run(first, count) {
  await payments(first, count);
  left = count;
  const all = new Promise((resolve) => { done = resolve; });
  const began = performance.now();
  for (let from = 0; from < count; from += 500) {
    const size = Math.min(500, count - from);
    await utils.addJobs(Array.from({ length: size }, (_, n) => ({ identifier: 'charge', payload: { id: first + from + n } })));
  }
  await all;
  return (performance.now() - began) / 1000;
}

await run(1, Math.ceil(flows / 20));
const first = 1_000_000;
await finish(first, await run(first, flows), 'graphile-worker');

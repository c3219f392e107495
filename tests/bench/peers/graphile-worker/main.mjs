// graphile-worker: two chained jobs a payment, with its local queue, which fetches and completes jobs in batches.
import { Logger, makeWorkerUtils, run as start } from 'graphile-worker';
import { connections, fail, measure, move, url } from '../common.mjs';

const BATCH = 500;
const logger = new Logger(() => (level, message) => { if (level === 'error') console.error(message); });
const utils = await makeWorkerUtils({ connectionString: url, logger });
await utils.migrate();

let left = 0;
let done;
const runner = await start({
  logger,
  noHandleSignals: true,
  preset: {
    worker: {
      connectionString: url,
      maxPoolSize: connections,
      concurrentJobs: connections,
      pollInterval: 100,
      localQueue: { size: BATCH },
      completeJobBatchDelay: 5,
      failJobBatchDelay: 5,
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
runner.promise.catch(fail);

await measure('graphile-worker', async (first, count) => {
  left = count;
  const all = new Promise((resolve) => { done = resolve; });
  for (let from = 0; from < count; from += BATCH) {
    const size = Math.min(BATCH, count - from);
    await utils.addJobs(Array.from({ length: size }, (_, n) => ({ identifier: 'charge', payload: { id: first + from + n } })));
  }
  await all;
});

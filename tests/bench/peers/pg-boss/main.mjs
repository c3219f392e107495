// pg-boss: two chained queues, worked in batches of 500; a batch moves its payments with one statement.
import { PgBoss } from 'pg-boss';
import { finish, flows, move, payments, url } from '../common.mjs';

const BATCH = 500;
const boss = new PgBoss({ connectionString: url, max: 16 });
boss.on('error', (problem) => { console.error(problem); process.exit(1); });
await boss.start();
await boss.createQueue('charge');
await boss.createQueue('business');

let left = 0;
let done;
const work = { batchSize: BATCH, pollingIntervalSeconds: 0.5 };
const ids = (jobs) => jobs.map((job) => job.data.id);
await boss.work('charge', work, async (jobs) => {
  await move(ids(jobs), 'WAIT_PAY', 'PAYED');
  await boss.insert('business', jobs.map((job) => ({ data: job.data })));
});
await boss.work('business', work, async (jobs) => {
  await move(ids(jobs), 'PAYED', 'BIZ_SUCCESS');
  left -= jobs.length;
  if (left === 0) done();
});

async function run(first, count) {
  await payments(first, count);
  left = count;
  const all = new Promise((resolve) => { done = resolve; });
  const began = performance.now();
  for (let from = 0; from < count; from += BATCH) {
    const size = Math.min(BATCH, count - from);
    await boss.insert('charge', Array.from({ length: size }, (_, n) => ({ data: { id: first + from + n } })));
  }
  await all;
  return (performance.now() - began) / 1000;
}

await run(1, Math.ceil(flows / 20));
const first = 1_000_000;
await finish(first, await run(first, flows), 'pg-boss');

// Reads a HAR as others do: by the schema of HAR 1.2.

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const require = createRequire(import.meta.url);
const { har } = require('har-validator');
try {
  await har(JSON.parse(readFileSync(process.argv[2], 'utf8')));
} catch (error) {
  console.error(error.errors ?? error);
  process.exit(1);
}

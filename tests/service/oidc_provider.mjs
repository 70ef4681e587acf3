// A real provider of OpenID Connect logins for the tests: node oidc_provider.mjs FOLDER PORT CALLBACK.
// Anybody whose name stands below logs in with any password.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, port, callback] = process.argv.slice(2);
const found = createRequire(`${folder}/x.js`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(found));
const issuer = `http://127.0.0.1:${port}`;
const people = {
  alice: { email: "Alice@example.org", email_verified: true, groups: ["staff", "vision"] },
  bob: { email: "bob@example.org", email_verified: false, groups: [] },
  eve: { email: "eve@elsewhere.example", email_verified: true, groups: ["guests"] },
};
const provider = new Provider(issuer, {
  clients: [{
    client_id: "tritune", client_secret: "a secret / of ours", redirect_uris: [callback],
    grant_types: ["authorization_code"], response_types: ["code"],
  }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  pkce: { required: () => true },
  findAccount: (_, id) => people[id] && {
    accountId: id, claims: async () => ({ sub: id, ...people[id] }),
  },
  cookies: { keys: ["of the tests"] },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
